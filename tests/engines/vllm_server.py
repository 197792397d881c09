"""A real vLLM server on a port of 127.0.0.1, which ends with the tests, however those end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from backends import lifeline
from tests.engines import vllm_install

NAME = "smollm2"
WINDOW_TOKENS = 4096
BLOCK_TOKENS = 32

_FLAGS = (
    f"--served-model-name {NAME} --host 127.0.0.1 --dtype bfloat16 --max-model-len {WINDOW_TOKENS} "
    f"--max-num-seqs 8 --enforce-eager --block-size {BLOCK_TOKENS} --enable-prefix-caching "
    "--enable-prompt-tokens-details --enable-auto-tool-choice --tool-call-parser hermes"
).split()
_ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # or each start compiles two thousand modules anew
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(min(os.cpu_count() or 1, 4)),  # or it serves with one
}
_START_S = 300.0
_STOP_S = 30.0
_POLL_S = 0.1


class DidNotStart(Exception):
    """With the end of its log."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """`url` is without `/v1`; `model` is the folder that it serves."""

    url: str
    model: Path
    log: Path
    process: subprocess.Popen[bytes]


def start(log: Path) -> VllmServer:
    """Returns at once; `wait_until_ready` says when it serves."""
    port = _free_port()
    command = [vllm_install.PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", vllm_install.MODEL, "--port", str(port), *_FLAGS]
    with log.open("wb") as output:
        process = subprocess.Popen(
            lifeline.watched([*map(str, command)]),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRON},
            start_new_session=True,
        )
    return VllmServer(f"http://127.0.0.1:{port}", vllm_install.MODEL, log, process)


def wait_until_ready(server: VllmServer) -> None:
    deadline = time.monotonic() + _START_S
    while not _healthy(server):
        if server.process.poll() is not None:
            raise DidNotStart(f"it ended with {server.process.returncode}\n{tail(server)}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"not healthy after {_START_S} s\n{tail(server)}")
        time.sleep(_POLL_S)


def stop(server: VllmServer) -> None:
    """Asks it to end; what is left of its process group after that is killed."""
    os.killpg(server.process.pid, signal.SIGTERM)
    try:
        server.process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
    finally:
        assert server.process.stdin is not None
        server.process.stdin.close()


def tail(server: VllmServer, lines: int = 40) -> str:
    """The end of its log."""
    return "\n".join(server.log.read_text(errors="replace").splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(server: VllmServer) -> bool:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
