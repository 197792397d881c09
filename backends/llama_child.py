"""The program of the embedded engine's process: `python -m backends.llama_child`.

Reads its options as one JSON line on stdin, starts llama.cpp's server, says where it listens as one JSON
line on stdout, and serves until it is told to end or its parent has ended. A process of its own, because
llama.cpp ends the process it lives in when something in it goes wrong, and takes every core it is given.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backends import lifeline

HOST = "127.0.0.1"

_NICENESS = 5
"""The proxy's event loop comes first."""
_BATCH_TOKENS = 512
"""A long prompt stalls the other slots for one such batch; llama.cpp's 2,048 is no faster on a CPU."""
_PROMPT_CACHE_MIB = 512
"""For prompts that lost their slot. llama.cpp's default is 8 GiB."""
_WARNINGS = 2
"""llama.cpp's log level: what is said at higher ones can hold what a client wrote."""
_PROPERTIES_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    model: str
    window_tokens: int
    """Of each slot."""
    slots: int
    threads: int
    port: int
    api_key: str = field(repr=False)
    alias: str
    """The name it gives the model in `/v1/models` and in replies."""

    def line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()


def unreadable(path: str) -> str | None:
    """Why this file cannot be a model; None when it looks like one. llama.cpp's own words are many lines."""
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"cannot read the model file {path}: {error.strerror}"
    return None if magic == b"GGUF" else f"the model file {path} is not a GGUF file"


def main() -> int:
    # What llama.cpp prints goes to stderr, whichever stream it chooses.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**facts: object) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    line = sys.stdin.buffer.readline()
    # It holds nothing that must be saved, and Python would see the signal only between calls into llama.cpp.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lifeline.hold()
    os.nice(_NICENESS)
    try:
        options = Options(**json.loads(line))
    except (ValueError, TypeError) as error:
        say(error=f"its options are not understood: {error}")
        return 1
    if reason := unreadable(options.model):
        say(error=reason)
        return 1
    try:
        server = _serve(options)
    except ImportError as error:
        say(error=f"xllamacpp cannot be imported: {error}")
        return 1
    except RuntimeError:
        say(error=f"llama.cpp does not start with the model file {options.model}", explain=True)
        return 1
    try:
        meta = _model_facts(options)
    except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
        say(error=f"llama.cpp does not answer: {error!r}", explain=True)
        return 1
    say(
        ready=True,
        port=options.port,
        model=options.alias,
        n_ctx_slot=meta["n_ctx"],
        n_ctx_train=meta["n_ctx_train"],
    )
    threading.Event().wait()
    del server  # until here: it stops when it is collected
    return 0


def _serve(options: Options) -> object:
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [HOST]
    params.port = options.port
    # The parent keeps the port bound, without listening, so that nobody takes it during a restart.
    params.reuse_port = True
    params.api_keys = [options.api_key]

    # n_ctx is the sum over the slots; not unified, each has its own share of it for sure.
    params.n_parallel = options.slots
    params.n_ctx = options.window_tokens * options.slots
    params.kv_unified = False
    # A prompt that does not fit is refused, never cut silently.
    params.ctx_shift = False
    # Do not shrink what was asked for to the memory that seems to be free.
    params.fit_params = False
    # Small models ramble: one that was given no max_tokens ends here, not at the end of its window.
    params.n_predict = max(256, options.window_tokens // 4)
    params.cache_prompt = True
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.n_batch = _BATCH_TOKENS
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads

    params.use_jinja = True
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.endpoint_props = False  # GET /props is always there; this one is for changing them
    params.ui = False
    params.verbosity = _WARNINGS
    return Server(params)


def _model_facts(options: Options) -> Mapping[str, Any]:
    """What came of the window: llama.cpp caps it to the model's training context, and rounds it up."""
    connection = http.client.HTTPConnection(HOST, options.port, timeout=_PROPERTIES_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {options.api_key}"})
        meta: Mapping[str, Any] = json.loads(connection.getresponse().read())["data"][0]["meta"]
        return {"n_ctx": int(meta["n_ctx"]), "n_ctx_train": int(meta["n_ctx_train"])}
    finally:
        connection.close()


if __name__ == "__main__":
    code = main()
    # Not through the interpreter's end: llama.cpp's threads may still run.
    os._exit(code)
