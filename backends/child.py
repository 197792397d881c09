"""A supervised child process: start, ready, restart with backoff, stop. It never outlives its parent.

`Child` is the parent's end; the child's is in `lifeline`. A program of ours calls `lifeline.hold`, any
other is started with the argv that `lifeline.watched` makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from backends.child_output import Lines, how_it_ended, what_mattered
from backends.lifeline import PARENT_PID

logger = logging.getLogger(__name__)

_TAIL_LINES = 60
_PIPES_AFTER_EXIT_S = 1.0
_KILLED_WITHIN_S = 10.0


class ChildError(Exception):
    """The child did not start, or is not there any more: one sentence for the person who started it."""


class State(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ready:
    """The child serves. `facts` are what it told about itself."""

    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The child says itself why it will not start. `explain`: what it wrote to stderr says the rest."""

    reason: str
    explain: bool = False


Word: TypeAlias = Ready | Progress | Failure
Stream: TypeAlias = Literal["stdout", "stderr"]
LineReader: TypeAlias = Callable[[Stream, str], Word | None]


@dataclass(frozen=True, slots=True)
class Backoff:
    first_s: float = 0.5
    cap_s: float = 30.0
    steady_s: float = 60.0
    """A child that was ready this long starts again with `first_s` when it dies."""

    def delay_s(self, crashes: int) -> float:
        """The wait before the next start, after this many crashes in a row."""
        # The exponent is bounded because a float is not: 2.0 ** 1024 raises.
        return min(self.cap_s, self.first_s * 2.0 ** min(max(crashes - 1, 0), 60))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    name: str
    """As it stands in sentences: "the embedded engine"."""
    argv: Sequence[str]
    """Seen by every user of the machine: secrets go into `first_line` or `env`."""
    read_line: LineReader
    """What a line of its output means; None for most lines."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """The whole environment; None: ours."""
    first_line: bytes | None = field(default=None, repr=False)
    """Written to its stdin at every start. Not for programs under `watched`."""
    before_start: Callable[[], None] | None = None
    """Called before each start, to clear what the last one left. Raises ChildError when it cannot start."""
    prove: Callable[[], Awaitable[Ready | Failure]] | None = None
    """Runs beside each start of a child that does not say itself when it is ready; its answer decides."""
    start_timeout_s: float = 120.0
    backoff: Backoff = field(default_factory=Backoff)
    explain: Callable[[Sequence[str]], str] = what_mattered
    """The lines of stderr that say why it ended, in short."""


class _Life(asyncio.SubprocessProtocol):
    """One process from its start to its end. Its pipes are drained always, or it would block on them."""

    def __init__(self, read_line: LineReader, on_progress: Callable[[str], None]) -> None:
        self._read_line = read_line
        self._on_progress = on_progress
        self._lines: dict[int, Lines] = {1: Lines(), 2: Lines()}
        self._transport: asyncio.SubprocessTransport | None = None
        self._closing: asyncio.TimerHandle | None = None
        self.pid = 0
        self.returncode: int | None = None
        self.word: Ready | Failure | None = None
        self.spoke = asyncio.Event()
        """Ready, or failure, or gone: the start is decided."""
        self.gone = asyncio.Event()
        """It has exited, its pipes are closed, and so is everything that we held of it."""
        self.stderr: deque[str] = deque(maxlen=_TAIL_LINES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._hear(fd, self._lines[fd].feed(data))

    def process_exited(self) -> None:
        assert self._transport is not None
        self.returncode = self._transport.get_returncode()
        # What it started in its group ends with it. Something that left the group may still hold the
        # pipes; what is in them is read, but nobody waits for that.
        self.signal(signal.SIGKILL)
        self._closing = asyncio.get_running_loop().call_later(_PIPES_AFTER_EXIT_S, self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        for fd, lines in self._lines.items():
            self._hear(fd, lines.end())
        if self._closing is not None:
            self._closing.cancel()
        if self._transport is not None:
            self._transport.close()
        self.gone.set()
        self.spoke.set()

    def _hear(self, fd: int, lines: Sequence[str]) -> None:
        stream: Stream = "stdout" if fd == 1 else "stderr"
        for line in lines:
            if stream == "stderr":
                self.stderr.append(line)
            # Debug only: a server may write a piece of a prompt into its log.
            logger.debug("child %d %s: %s", self.pid, stream, line)
            word = self._read_line(stream, line)
            if isinstance(word, Progress):
                self._on_progress(word.text)
            elif word is not None and self.word is None:
                self.word = word
                self.spoke.set()

    def write(self, line: bytes) -> None:
        assert self._transport is not None
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        stdin.write(line.rstrip(b"\n") + b"\n")

    def signal(self, number: int) -> None:
        """To its whole group. Not after it is gone: the number may be another's by then."""
        if not self.gone.is_set():
            # macOS says EPERM for a group of zombies.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self, grace_s: float) -> None:
        try:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.gone.wait()
        finally:
            self.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_WITHIN_S):
                await self.gone.wait()
        if not self.gone.is_set() and self._transport is not None:
            # In the kernel's hands (a dead disk, a driver): it ends when that lets go of it.
            self._transport.close()


class Child:
    """Start it, and it stays: after a crash it comes back, with growing pauses.

    Only a first start fails for good; a child that was ready once is started again without end, because
    what broke it (memory, a file being replaced) may pass.
    """

    def __init__(self, spec: ChildSpec, on_change: Callable[[Child], None] | None = None) -> None:
        """`on_change` is called in the event loop at each change of `state` or `progress`."""
        self._spec = spec
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._life: _Life | None = None
        self._changed = asyncio.Event()
        self.state = State.STOPPED
        self.progress = ""
        self.ready = Ready()
        self.last_error: str | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._life.pid if self._life is not None and not self._life.gone.is_set() else None

    @property
    def stderr_tail(self) -> Sequence[str]:
        return tuple(self._life.stderr) if self._life is not None else ()

    async def start(self) -> Ready:
        """Returns when it is ready. Raises ChildError; then nothing of it is left."""
        if self.state not in (State.STOPPED, State.FAILED):
            raise RuntimeError(f"{self._spec.name} was started already")
        self.last_error = None
        self._become(State.STARTING)
        self._task = asyncio.create_task(self._supervise(), name=self._spec.name)
        try:
            return await self.wait_ready()
        except asyncio.CancelledError:
            await self.stop(grace_s=0)
            raise

    async def wait_ready(self) -> Ready:
        """Returns at once when it is ready, else after its start or restart. Raises ChildError."""
        while self.state is not State.READY:
            if self.state not in (State.STARTING, State.BACKING_OFF):
                raise ChildError(self.last_error or f"{self._spec.name} is {self.state}")
            await self._changed.wait()
        return self.ready

    async def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL, to its whole group. Cancelling this skips the grace, not the SIGKILL."""
        if self._task is None:
            return
        self._become(State.STOPPING)
        self._task.cancel()
        try:
            await asyncio.wait({self._task})
            if self._life is not None:
                await self._life.end(grace_s)
        finally:
            if self._life is not None:
                self._life.signal(signal.SIGKILL)
            self._task = None
            self._become(State.STOPPED)

    async def _supervise(self) -> None:
        crashes = 0
        life: _Life | None = None
        try:
            life = await self._launch()
            while True:
                if life is not None:
                    since = time.monotonic()
                    self._become(State.READY)
                    await life.gone.wait()
                    if time.monotonic() - since >= self._spec.backoff.steady_s:
                        crashes = 0
                    # Without its last lines: by now they may hold what a client wrote.
                    self.last_error = f"{self._spec.name} {how_it_ended(life.returncode)}"
                crashes += 1
                delay_s = self._spec.backoff.delay_s(crashes)
                logger.warning("%s; it is started again in %.1f s", self.last_error, delay_s)
                self._become(State.BACKING_OFF)
                await asyncio.sleep(delay_s)
                self.restarts += 1
                self._become(State.STARTING)
                life = await self._relaunch()
        except asyncio.CancelledError:
            if self.state is not State.STOPPING and self._life is not None:
                # Not by `stop`: the event loop is being closed, and uvloop's waits for its processes.
                await self._life.end(0)
                self._become(State.STOPPED)
            raise
        except ChildError as error:
            self.last_error = str(error)
            self._become(State.FAILED)
        except Exception as error:
            # A fault of ours, or of a callback: nobody may wait for a child that nobody supervises.
            logger.exception("%s is no longer supervised", self._spec.name)
            if self._life is not None:
                self._life.signal(signal.SIGKILL)
            self.last_error = f"{self._spec.name} is no longer supervised: {error!r}"
            self._on_change = None
            self._become(State.FAILED)

    async def _relaunch(self) -> _Life | None:
        try:
            return await self._launch()
        except ChildError as error:
            self.last_error = str(error)
            return None

    async def _launch(self) -> _Life:
        spec, loop = self._spec, asyncio.get_running_loop()
        if spec.before_start is not None:
            spec.before_start()
        env = {**(os.environ if spec.env is None else spec.env), PARENT_PID: str(os.getpid())}
        launching = asyncio.ensure_future(
            loop.subprocess_exec(
                lambda: _Life(spec.read_line, self._progressed), *spec.argv, env=env, start_new_session=True
            )
        )
        try:
            _, life = await asyncio.shield(launching)
        except asyncio.CancelledError:
            # Stopped at this very moment: it runs all the same, and `stop` must know of it to end it.
            with contextlib.suppress(OSError):
                _, self._life = await launching
            raise
        except OSError as error:
            reason = error.strerror or error
            raise ChildError(f"{spec.name} could not be started: {spec.argv[0]}: {reason}") from None
        self._life = life
        if spec.first_line is not None:
            life.write(spec.first_line)
        try:
            async with asyncio.timeout(spec.start_timeout_s):
                await self._decided(life)
        except TimeoutError:
            await life.end(0)
            told = self._explained(life)
            raise ChildError(f"{spec.name} was not ready after {spec.start_timeout_s:g} s{told}") from None
        if isinstance(life.word, Ready) and not life.gone.is_set():
            self.ready = life.word
            return life
        await life.end(0)
        if isinstance(life.word, Failure):
            told = self._explained(life) if life.word.explain else ""
            raise ChildError(f"{spec.name} could not start: {life.word.reason}{told}")
        ended = how_it_ended(life.returncode)
        raise ChildError(f"{spec.name} {ended} before it was ready{self._explained(life)}")

    async def _decided(self, life: _Life) -> None:
        """Until it is ready, has said why not, or is gone."""
        if self._spec.prove is None:
            await life.spoke.wait()
            return
        proving = asyncio.ensure_future(self._spec.prove())
        spoken = asyncio.create_task(life.spoke.wait())
        try:
            await asyncio.wait({proving, spoken}, return_when=asyncio.FIRST_COMPLETED)
            if life.word is None and proving.done():
                life.word = proving.result()
        finally:
            proving.cancel()
            spoken.cancel()
            await asyncio.gather(proving, spoken, return_exceptions=True)

    def _explained(self, life: _Life) -> str:
        text = self._spec.explain(life.stderr)
        return f": {text}" if text else ""

    def _progressed(self, text: str) -> None:
        self.progress = text
        if self._on_change is not None:
            self._on_change(self)

    def _become(self, state: State) -> None:
        self.state = state
        before, self._changed = self._changed, asyncio.Event()
        before.set()
        logger.debug("%s is %s", self._spec.name, state)
        if self._on_change is not None:
            self._on_change(self)
