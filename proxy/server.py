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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from backends.embedded import Endpoint
from proxy import log
from proxy.admin import AdminHandler
from proxy.config import Config, ConfigError
from proxy.config_checks import needs_restart
from proxy.config_source import Source
from proxy.engines import Engines
from proxy.listener import Listener, open_socket
from proxy.telemetry.snapshot import Snapshot
from proxy.worker import Worker, tls_context
from proxy.worker_process import WorkerFailed, WorkerProcess

logger = logging.getLogger(__name__)

WATCH_S = 1.0
"""How often the config file is looked at, and the workers' metrics are noted."""
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
        self._text = text
        self._engines = engines
        self._workers: list[WorkerProcess] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._dead = Snapshot()
        self._stopping = False

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def start(self) -> None:
        await asyncio.gather(*(self._add() for _ in range(self._number)))

    async def _add(self) -> None:
        worker = await WorkerProcess.start(self._sock, self._source, self._text, self._engines)
        self._workers.append(worker)
        task = asyncio.create_task(self._watch(worker))
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _watch(self, worker: WorkerProcess) -> None:
        code = await worker.ended()
        if self._stopping:
            return
        logger.error("worker %d ended with code %d; another one takes its place", worker.pid, code)
        self._workers.remove(worker)
        await worker.kill()
        self._dead.add(worker.last.without_gauges())
        while not self._stopping:
            try:
                await self._add()
                return
            except (WorkerFailed, OSError) as error:
                logger.error("a worker could not be started: %s", error)
                await asyncio.sleep(RESPAWN_S)

    async def apply(self, settings: Config, text: str) -> None:
        self._text = text
        await asyncio.gather(
            *(worker.command({"op": "apply", "text": text}, 30.0) for worker in self._workers)
        )

    async def snapshot(self) -> Snapshot:
        total = Snapshot()
        total.add(self._dead)
        for snapshot in await asyncio.gather(*(worker.snapshot() for worker in self._workers)):
            total.add(snapshot)
        return total

    async def stop(self, drain_s: float) -> bool:
        self._stopping = True
        whole = await asyncio.gather(*(worker.stop(drain_s) for worker in self._workers))
        for task in list(self._watchers):
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        return all(whole)


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
    text = source.text()
    settings = source.parse(text)
    log.configure(settings.log.level, settings.log.format)
    tls_context(settings.server)  # what is wrong with it is told before anything is started
    raise_open_files()
    sock = open_socket(settings.server.host, settings.server.port)
    engines = Engines(settings)
    admin: Listener | None = None
    try:
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
            if settings.admin.enabled:
                admin_sock = open_socket(settings.admin.host, settings.admin.port)
                admin_port = admin_sock.getsockname()[1]
                admin = Listener(AdminHandler(settings.admin, crew.snapshot))
                await admin.start(admin_sock)
            keeper = ConfigKeeper(source, settings, text, crew)
            running = Running(settings, sock.getsockname()[1], admin_port, crew, keeper.reload)
            await _until_stopped(running, keeper, on_ready, signals=signals)
        finally:
            whole = await crew.stop(settings.server.drain_s)
        return 0 if whole else 1
    finally:
        if admin is not None:
            await admin.close()
        await engines.stop()
        sock.close()


async def _until_stopped(
    running: Running, keeper: ConfigKeeper, on_ready: Callable[[Running], None], *, signals: bool
) -> None:
    loop = asyncio.get_running_loop()
    if signals:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, running.stop.set)
        loop.add_signal_handler(signal.SIGHUP, keeper.ask)
    watching = asyncio.create_task(keeper.watch())
    try:
        on_ready(running)
        await running.stop.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


class ConfigKeeper:
    """Applies a changed config whole or refuses it whole, with the reason, and the old one stays."""

    def __init__(self, source: Source, settings: Config, text: str, crew: Crew) -> None:
        self._source = source
        self._settings = settings
        self._seen = text
        self._crew = crew
        self._asked = asyncio.Event()
        self.version = 1

    def ask(self) -> None:
        """SIGHUP: look now, and apply even what reads the same (a `file:` key may have changed)."""
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
            await self._crew.snapshot()
            if asked or self._has_changed():
                await self.reload()

    def _has_changed(self) -> bool:
        if self._source.path is None:
            return False
        try:
            return self._source.text() != self._seen
        except ConfigError:
            # Perhaps it is being replaced at this moment.
            return False

    async def reload(self) -> str | None:
        try:
            text = self._source.text()
            self._seen = text
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
