"""The supervisor: one listening socket, the engines, the workers, the config file, signals, drain.

With one worker (the default) everything runs in this process. With more, each is a process of its own on the
same inherited socket, and one that crashes is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from backends.endpoint import Endpoint
from proxy import log
from proxy.admin import AdminHandler
from proxy.config import Config, ConfigError
from proxy.config_checks import needs_restart
from proxy.config_source import Source
from proxy.engines import Engines
from proxy.listener import Listener, open_socket
from proxy.telemetry.snapshot import Snapshot
from proxy.worker import Worker, tls_context
from proxy.worker_process import WorkerFailed, WorkerProcess, WorkerRefused

logger = logging.getLogger(__name__)

WATCH_S = 1.0
"""How often the config file is looked at, and the workers' metrics are noted."""
APPLY_S = 30.0
"""A worker that has not applied a config by then is replaced."""
RESPAWN_S = 1.0
"""A worker that crashes at once is not started again in a tight loop."""


class Crew(Protocol):
    """The workers as one: this process itself, or several others."""

    async def start(self) -> None: ...
    async def apply(self, settings: Config, text: str) -> None: ...
    async def snapshot(self) -> Snapshot: ...
    async def stop(self, drain_s: float) -> bool: ...


class InProcess:
    """One worker, here."""

    def __init__(self, sock: socket.socket, settings: Config, engines: Mapping[str, Endpoint]) -> None:
        self._sock = sock
        self._worker = Worker(settings, engines)

    async def start(self) -> None:
        await self._worker.start(self._sock)

    async def apply(self, settings: Config, text: str) -> None:
        await self._worker.apply(settings)

    async def snapshot(self) -> Snapshot:
        return await self._worker.snapshot()

    async def stop(self, drain_s: float) -> bool:
        return await self._worker.stop(drain_s)


class Processes:
    """Several workers, each a process; a crashed one is replaced and its counts are kept."""

    def __init__(
        self, number: int, sock: socket.socket, source: Source, text: str, engines: Mapping[str, Endpoint]
    ) -> None:
        self._number = number
        self._sock = sock
        self._source = source
        self.text = text
        """What a worker that starts now is given."""
        self._version = 1
        """Of what is in force. Equal texts may differ in the files that they name."""
        self._engines = engines
        self._workers: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead = Snapshot()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def start(self) -> None:
        await asyncio.gather(*(self._keep(self._add()) for _ in range(self._number)))

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _add(self) -> None:
        version = self._version
        worker = await WorkerProcess.start(self._sock, self._source, self.text, self._engines)
        try:
            while version != self._version:  # another config came into force while it started
                version = self._version
                await worker.command({"op": "apply", "text": self.text}, APPLY_S)
        except BaseException:
            await worker.kill()
            raise
        self._workers.append(worker)
        self._keep(self._watch(worker))

    async def _watch(self, worker: WorkerProcess) -> None:
        code = await worker.ended()
        logger.error("worker %d ended with code %d; another one takes its place", worker.pid, code)
        self._workers.remove(worker)
        self._dead.add(worker.last.without_gauges())
        await worker.kill()
        while True:
            try:
                return await self._add()
            except Exception as error:
                logger.error("a worker could not be started: %r", error)
                await asyncio.sleep(RESPAWN_S)

    async def apply(self, settings: Config, text: str) -> None:
        """It holds when a worker has applied it; one that has not is replaced. Raises WorkerFailed when refused."""
        before = self.text
        self._set(text)
        told = list(self._workers)
        failures = await asyncio.gather(*(self._apply(worker, text) for worker in told))
        refusal = next((failure for failure in failures if isinstance(failure, WorkerRefused)), None)
        if None in failures:
            refusal = None
        if refusal is not None:
            self._set(before)
        for worker, failure in zip(told, failures, strict=True):
            if failure is None or (refusal is not None and isinstance(failure, WorkerRefused)):
                continue
            logger.error("worker %d has not applied the config and is replaced: %s", worker.pid, failure)
            await worker.kill()
        if refusal is not None:
            raise refusal

    def _set(self, text: str) -> None:
        self.text = text
        self._version += 1

    async def _apply(self, worker: WorkerProcess, text: str) -> WorkerFailed | None:
        try:
            await worker.command({"op": "apply", "text": text}, APPLY_S)
        except WorkerFailed as error:
            return error
        return None

    async def snapshot(self) -> Snapshot:
        total = Snapshot()
        total.add(self._dead)
        for snapshot in await asyncio.gather(*(worker.snapshot() for worker in self._workers)):
            total.add(snapshot)
        return total

    async def stop(self, drain_s: float) -> bool:
        # The kernel would go on taking clients for us, and nobody would serve them.
        self._sock.close()
        try:
            # None is started from here on, and one that is starting is ended.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            whole = await asyncio.gather(
                *(worker.stop(drain_s) for worker in self._workers), return_exceptions=True
            )
        for ended in whole:
            if isinstance(ended, BaseException):
                logger.error("a worker did not stop cleanly", exc_info=ended)
        return all(ended is True for ended in whole)


@dataclass(slots=True)
class Running:
    """A server that serves. `port` and `admin_port` are the real ones, also where 0 was asked for."""

    settings: Config
    port: int
    admin_port: int | None
    crew: Crew
    reload: Callable[[], Awaitable[str | None]]
    """Load the file again. None: applied, or nothing new; else why it was refused."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Drain, then end."""
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    """Do not drain any longer."""


async def run(
    source: Source,
    *,
    on_ready: Callable[[Running], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
    signals: bool = True,
) -> int:
    """Serve until a signal or `Running.stop`. Returns the exit code.

    Raises ConfigError, EngineFailed, WorkerFailed, OSError.
    """
    if not signals:
        return await _serve(source, on_ready, on_progress, signals=False)
    # Until it is ready there is nothing to drain: what has been started is ended, and that is all.
    starting = asyncio.create_task(_serve(source, on_ready, on_progress, signals=True))
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, starting.cancel)
    try:
        return await starting
    except asyncio.CancelledError:
        if not starting.cancelled():
            raise
        return 0


async def _serve(
    source: Source,
    on_ready: Callable[[Running], None],
    on_progress: Callable[[str], None],
    *,
    signals: bool,
) -> int:
    text = source.text()
    settings = source.parse(text)
    log.configure(settings.log.level, settings.log.format)
    tls_context(settings.server)  # what is wrong with it is told before anything is started
    raise_open_files()
    sock = open_socket(settings.server.host, settings.server.port)
    engines = Engines(settings)
    admin: Listener | None = None
    admin_sock = None
    try:
        if settings.admin.enabled:
            admin_sock = open_socket(settings.admin.host, settings.admin.port)
        endpoints = await engines.start(on_progress)
        crew: Crew
        if settings.server.workers == 1:
            crew = InProcess(sock, settings, endpoints)
        else:
            crew = Processes(settings.server.workers, sock, source, text, endpoints)
        on_progress("tokenizers")
        try:
            await crew.start()
            admin_port = None
            if admin_sock is not None:
                admin_port = admin_sock.getsockname()[1]
                admin = Listener(AdminHandler(settings.admin, crew.snapshot))
                await admin.start(admin_sock)
            keeper = ConfigKeeper(source, settings, text, crew)
            running = Running(settings, sock.getsockname()[1], admin_port, crew, keeper.reload)
            await _until_stopped(running, keeper, engines, on_ready, signals=signals)
        except BaseException:
            await crew.stop(settings.server.drain_s)
            raise
        whole = await _drained(running)
        return 0 if whole else 1
    finally:
        if admin is not None:
            await admin.close()
        elif admin_sock is not None:
            admin_sock.close()
        await engines.stop()
        sock.close()


async def _until_stopped(
    running: Running,
    keeper: ConfigKeeper,
    engines: Engines,
    on_ready: Callable[[Running], None],
    *,
    signals: bool,
) -> None:
    """Raises EngineFailed when nothing is left that could serve."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (running.abort if running.stop.is_set() else running.stop).set()

    if signals:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, on_signal)
        loop.add_signal_handler(signal.SIGHUP, keeper.ask)
    tasks = [asyncio.create_task(work) for work in (keeper.watch(), engines.gave_up(), running.stop.wait())]
    _, failing, stopping = tasks
    try:
        on_ready(running)
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drained(running: Running) -> bool:
    """Stop the workers: gently, until `abort`. True when nothing was cut short."""
    logger.info(
        "stopping: requests may run on for %g s; a second signal ends them", running.settings.server.drain_s
    )
    stopping = asyncio.create_task(running.crew.stop(running.settings.server.drain_s))
    aborted = asyncio.create_task(running.abort.wait())
    try:
        await asyncio.wait({stopping, aborted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (aborted, stopping):
            task.cancel()
        await asyncio.wait({aborted, stopping})
    return not stopping.cancelled() and stopping.result()


class ConfigKeeper:
    """Applies a changed config whole or refuses it whole, with the reason, and the old one stays."""

    def __init__(self, source: Source, settings: Config, text: str, crew: Crew) -> None:
        self._source = source
        self._settings = settings
        self._seen = source.fingerprint(text)
        self._missing = False
        self._crew = crew
        self._asked = asyncio.Event()
        self._lock = asyncio.Lock()
        self.version = 1

    def ask(self) -> None:
        """SIGHUP: look now, and apply even what reads the same."""
        self._asked.set()

    async def watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._asked.wait()
                asked = True
            except TimeoutError:
                asked = False
            self._asked.clear()
            # Each on its own, and whatever it is: without this loop no config would ever be applied again.
            try:
                await self._crew.snapshot()
            except Exception:
                logger.exception("the workers' metrics could not be noted")
            try:
                if asked or self._has_changed():
                    await self.reload()
            except Exception:
                logger.exception("the config could not be looked at")

    def _has_changed(self) -> bool:
        if self._source.path is None:
            return False
        try:
            now = self._source.fingerprint(self._source.text())
        except ConfigError as error:
            # Perhaps it is being replaced at this moment; told once.
            if not self._missing:
                logger.warning("the config cannot be read, the old one stays: %s", error)
            self._missing = True
            return False
        self._missing = False
        return now != self._seen

    async def reload(self) -> str | None:
        async with self._lock:
            return await self._reload()

    async def _reload(self) -> str | None:
        try:
            text = self._source.text()
            self._seen = self._source.fingerprint(text)
            settings = self._source.parse(text)
            if keys := needs_restart(self._settings, settings):
                raise ConfigError([(key, "cannot change while running: restart") for key in keys])
            await self._crew.apply(settings, text)
        except (ConfigError, WorkerFailed) as error:
            logger.error("the changed config is refused, the old one stays: %s", error)
            return str(error)
        self._settings = settings
        self.version += 1
        logger.info("config %d is in force", self.version)
        return None


def raise_open_files() -> None:
    """The soft limit on open files to its hard value: each stream needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
