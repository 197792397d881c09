"""A vLLM engine as a supervised child: started, watched until it answers, started again when it dies, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from backends.base import Timeouts
from backends.child import Child, ChildError, ChildSpec, Failure, Progress, Ready, State, Stream, Word
from backends.endpoint import Endpoint
from backends.engine_state import StateWriter
from backends.errors import BackendError
from backends.http import HttpOptions
from backends.lifeline import watched
from backends.openai import OpenAIBackend
from backends.supervised import Supervised
from backends.vllm import preflight, preload, proof
from backends.vllm.log_lines import StartLog, Step, share
from backends.vllm.options import EngineOptions
from backends.vllm.preflight import Prepared
from backends.vllm.probe import MODULE

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_MAX_SOCKET_PATH_BYTES = 100
"""sun_path holds 104 bytes on macOS, 108 on Linux (unix(7))."""
_BAR_CELLS = 20


class VllmEngine(Supervised):
    """One engine. Its address and key stay the same over crashes and restarts of the process."""

    def __init__(
        self, name: str, options: EngineOptions, on_change: Callable[[VllmEngine], None] | None = None
    ) -> None:
        """`name` is the backend's. `on_change` is called in the event loop at each change of `state` or `text`."""
        super().__init__()
        self.name = name
        self.prepared: Prepared | None = None
        self._options = options
        self._on_change = on_change
        self._folder: Path | None = None
        self._endpoint: Endpoint | None = None
        self._state: StateWriter | None = None
        self._log = StartLog()
        self._preload: preload.Preload | None = None
        self._preloading: asyncio.Task[None] | None = None

    @property
    def read_ahead_bytes(self) -> int:
        """What the last preload brought into memory."""
        return self._preload.read_bytes if self._preload is not None else 0

    @property
    def text(self) -> str:
        """What it is doing, for people."""
        if self.state is State.STARTING:
            return f"the engine starts: {self._log.reached}{self._read_ahead()}"
        if self.state is State.BACKING_OFF:
            return f"{self.last_error}; it is started again"
        return self.last_error or "" if self.state is State.FAILED else f"the engine is {self.state}"

    @property
    def bar(self) -> str:
        """`text` behind a bar, for a terminal."""
        full = round(share(self._log.reached) * _BAR_CELLS)
        return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {self._log.reached}{self._read_ahead()}"

    async def prepare(self) -> Endpoint:
        """Looks at all that can be known before a start, and says where it will listen. Raises Impossible."""
        self.prepared = await preflight.prepare(self._options)
        self._folder = run_folder()
        self._state = StateWriter(self._folder)
        port = self._options.port
        base_url = f"http://{HOST}:{port}/v1" if port is not None else "http://engine/v1"
        self._endpoint = Endpoint(
            base_url,
            secrets.token_urlsafe(32),
            socket_path=None if port is not None else str(self._folder / "engine.sock"),
            state_folder=str(self._folder),
        )
        self._child = Child(self._spec(self.prepared, self._endpoint), self._child_changed)
        return self._endpoint

    async def start(self) -> None:
        """After `prepare`. Returns when it has answered. Raises ChildError."""
        assert self._child is not None
        await self._child.start()

    async def wait_ready(self) -> None:
        """Returns at once, or after the restart that is going on. Raises ChildError when it is not running."""
        assert self._child is not None
        await self._child.wait_ready()

    async def stop(self) -> None:
        try:
            self._end_preload()
            if self._child is not None:
                await self._child.stop(self._options.stop_grace_s)
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _spec(self, prepared: Prepared, endpoint: Endpoint) -> ChildSpec:
        where = (
            ["--uds", endpoint.socket_path]
            if endpoint.socket_path is not None
            else ["--host", HOST, "--port", str(self._options.port)]
        )
        return ChildSpec(
            name=f"the engine of backend {self.name!r}",
            argv=watched([*prepared.command, "-m", MODULE, *prepared.argv, *where]),
            read_line=self._hear,
            # By the environment: command lines are seen by every user of the machine.
            env={**prepared.env, "VLLM_API_KEY": endpoint.api_key},
            before_start=self._clear,
            prove=self._prove,
            start_timeout_s=self._options.start_timeout_s,
            explain=lambda _lines: self._log.cause,
        )

    def _clear(self) -> None:
        """Raises ChildError."""
        assert self._endpoint is not None
        self._log = StartLog()
        if self._endpoint.socket_path is not None:
            # vLLM leaves it behind, and does not start on one that is there.
            Path(self._endpoint.socket_path).unlink(missing_ok=True)
        elif not _is_free(self._options.port or 0):
            raise ChildError(
                f"port: {self._options.port} is taken by another program: choose another one, or leave port out"
            )
        self._begin_preload()

    def _hear(self, _stream: Stream, line: str) -> Word | None:
        if self.state is not State.STARTING:
            return None
        reached = self._log.hear(line)
        if reached is None:
            return None
        if reached.name == "weights are loaded":
            self._end_preload()
        return Progress(str(reached))

    async def _prove(self) -> Ready | Failure:
        assert self._endpoint is not None
        backend = private_backend(self.name, self._endpoint)
        model = self._options.served_as
        try:
            await proof.listening(backend)
            self._reach("asking it for a first token")
            await proof.first_token(backend, model)
            if self._options.warm_prompts:
                self._reach("warming prompts")
                await proof.warm(backend, model, self._options.warm_prompts)
        except proof.NoAnswer as error:
            return Failure(str(error))
        except BackendError as error:
            return Failure(f"it ended while it was asked for a first token ({error})", explain=True)
        finally:
            await backend.close()
        return Ready()

    def _reach(self, step: str) -> None:
        self._log.reached = Step(step)
        self._tell()

    def _begin_preload(self) -> None:
        self._end_preload()
        assert self.prepared is not None
        load_format = self._options.flags.get("load_format", "auto")
        if not self._options.preload or load_format not in preload.WHOLE_FILE_FORMATS:
            return
        files, room = self.prepared.weights.files, preload.memory_limit_bytes()
        if files and room:
            self._preload = preload.Preload(files, room, lambda _done, _total: self._tell())
            self._preloading = asyncio.create_task(self._preload.run(), name="preload")

    def _end_preload(self) -> None:
        if self._preloading is not None:
            self._preloading.cancel()
            self._preloading = None

    def _read_ahead(self) -> str:
        ahead = self._preload
        if ahead is None or not ahead.total_bytes or ahead.done_bytes >= ahead.total_bytes:
            return ""
        return f" (weights read ahead: {ahead.done_bytes / ahead.total_bytes:.0%})"

    def _child_changed(self, child: Child) -> None:
        if child.state is not State.STARTING:
            self._end_preload()
        self._tell()

    def _tell(self) -> None:
        if self._state is not None and self._folder is not None:
            try:
                self._state.write(ready=self.state is State.READY, text=self.text)
            except OSError as error:
                logger.warning("backend %r: its state cannot be written: %s", self.name, error.strerror)
        if self._on_change is not None:
            self._on_change(self)


def private_backend(name: str, endpoint: Endpoint) -> OpenAIBackend:
    """The engine as its supervisor speaks to it, ready or not."""
    return OpenAIBackend(
        HttpOptions(
            name=name,
            base_url=endpoint.base_url,
            auth="config",
            key=endpoint.api_key,
            # The first token may have to wait for kernels to be compiled; the start has a limit of its own.
            timeouts=Timeouts(ttft_s=None, idle_s=None),
            socket_path=endpoint.socket_path,
        )
    )


def run_folder() -> Path:
    """A folder for its socket and state that no other user can enter."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 (mkdtemp is safe)
        if parent and len(os.fsencode(parent)) + 40 <= _MAX_SOCKET_PATH_BYTES:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="chatfuse-", dir=parent))
    raise ChildError("no folder for the engine's socket: TMPDIR is too long, or cannot be written")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
