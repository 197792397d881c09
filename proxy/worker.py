"""The serving part of one process: a listener, the runtime in force, its metrics.

Run as `python -m proxy.worker` it is a child of the supervisor: the listening socket is inherited, and what
to do comes as JSON lines over a socket pair, each answered by one line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import uvloop

from backends.endpoint import Endpoint
from proxy import app, log
from proxy.config import Config, ConfigError, Server
from proxy.config_source import Source
from proxy.handlers.dispatch import Dispatch
from proxy.listener import Listener
from proxy.runtime import Live, Runtime
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.snapshot import Snapshot

logger = logging.getLogger(__name__)
_MAX_COMMAND_BYTES = 32 * 1024 * 1024
_FRESH_S = 0.5
"""How long a scrape waits for what the backends say; later answers are seen by the next one."""
_ASKED_S = 5.0
"""A backend that has said nothing for this long is not ready."""


class Worker:
    """Serves on a socket until it is told to stop."""

    def __init__(self, settings: Config, engines: Mapping[str, Endpoint]) -> None:
        self._engines = engines
        self._parts = app.Parts(Metrics(settings.telemetry))
        self._live = Live(app.open_runtime(settings, self._parts, engines))
        self._dispatch = Dispatch(self._live)
        self._listener = Listener(self._dispatch)
        self._closing: set[asyncio.Task[None]] = set()
        self._asking: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        """Ready to serve when it returns: tokenizers are loaded, what was made so far is left to no collector."""
        settings = self._live.runtime.config
        await app.load_tokenizers(settings, self._parts)
        gc.collect()
        gc.freeze()
        self._live.runtime.learner.start()
        await self._listener.start(sock, tls_context(settings.server))

    async def apply(self, settings: Config) -> None:
        """Build what a new config needs, then swap one reference. Requests in progress keep the old one."""
        await app.load_tokenizers(settings, self._parts)
        old = self._live.runtime
        self._live.runtime = app.open_runtime(settings, self._parts, self._engines)
        self._live.runtime.learner.start()
        if old.users == 0:
            self._retire(old)
        else:
            old.on_idle = lambda: self._retire(old)

    def _retire(self, runtime: Runtime) -> None:
        runtime.on_idle = None
        task = asyncio.create_task(app.close_runtime(runtime))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def snapshot(self) -> Snapshot:
        """The metrics now, after asking the backends how they are. One that hangs holds up nothing."""
        if not self._live.draining:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_backends())
            await asyncio.wait({self._asking}, timeout=_FRESH_S)
        return self.counted()

    def counted(self) -> Snapshot:
        """The metrics as they are, also when the backends are closed."""
        return Snapshot.take(self._parts.metrics.registry)

    async def _ask_backends(self) -> None:
        runtime = self._live.runtime
        await asyncio.gather(*(self._ask(runtime, name) for name in runtime.backends))

    async def _ask(self, runtime: Runtime, name: str) -> None:
        ready, kv = False, None
        try:
            async with asyncio.timeout(_ASKED_S):
                ready = (await runtime.backends[name].readiness()).ready
                kv = await runtime.backends[name].sample() if ready else None
        except TimeoutError:
            logger.warning("backend %r does not say how it is", name)
        except Exception:
            if self._live.runtime is runtime:  # else it has been closed meanwhile
                logger.exception("backend %r cannot be asked how it is", name)
        if self._live.runtime is runtime:
            self._parts.metrics.backend_state(name, ready)
            self._parts.metrics.kv(name, kv)

    async def stop(self, drain_s: float) -> bool:
        """Fail readiness, stop listening, wait for what runs. True when nothing had to be cut short."""
        self._live.draining = True
        await self._listener.stop_listening()
        whole = await self._dispatch.drained(drain_s)
        await self._listener.close()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
        await self._parts.stop()
        await app.close_runtime(self._live.runtime)
        if self._closing:
            await asyncio.wait(self._closing)
        self._parts.close()
        return whole


def tls_context(server: Server) -> ssl.SSLContext | None:
    """Raises ConfigError when the certificate or its key cannot be loaded."""
    if server.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls.cert, server.tls.key)
    except OSError as error:
        problem = f"cannot be loaded: {error.strerror or type(error).__name__}"
        raise ConfigError([("server.tls", problem)]) from None
    return context


class _Child:
    """A worker process: commands in, answers out."""

    def __init__(
        self, sock: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._sock = sock
        self._reader = reader
        self._writer = writer
        self._worker: Worker | None = None
        self._source: Source | None = None
        self._stopped = False

    async def run(self) -> None:
        """Until told to stop, or until the supervisor is gone, whatever is being done at that moment."""
        commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        tasks = {asyncio.create_task(self._listen(commands)), asyncio.create_task(self._obey(commands))}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionError):
                logger.error("the worker ends", exc_info=ended)
        if self._worker is not None and not self._stopped:
            await self._worker.stop(0.0)

    async def _listen(self, commands: asyncio.Queue[dict[str, Any]]) -> None:
        """Returns when the supervisor is gone."""
        while line := await self._reader.readline():
            commands.put_nowait(orjson.loads(line))

    async def _obey(self, commands: asyncio.Queue[dict[str, Any]]) -> None:
        """One command after the other. Returns when it has stopped."""
        while not self._stopped:
            command = await commands.get()
            try:
                answer = await self._do(command)
            except ConfigError as error:
                answer = {"error": str(error)}
            except Exception as error:
                logger.exception("worker command %r failed", command.get("op"))
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._writer.write(orjson.dumps({**answer, "number": command["number"]}) + b"\n")
            await self._writer.drain()

    async def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        op = command["op"]
        if op == "start":
            path = Path(command["path"]) if command["path"] else None
            self._source = Source(path, os.environ, command["embedded"])
            settings = self._source.parse(command["text"])
            log.configure(settings.log.level, settings.log.format)
            engines = {name: Endpoint(**endpoint) for name, endpoint in command["engines"].items()}
            self._worker = Worker(settings, engines)
            await self._worker.start(self._sock)
            return {"ok": True}
        assert self._worker is not None
        assert self._source is not None
        if op == "apply":
            await self._worker.apply(self._source.parse(command["text"]))
            return {"ok": True}
        if op == "snapshot":
            return {"snapshot": (await self._worker.snapshot()).dump()}
        if op == "stop":
            whole = await self._worker.stop(command["drain_s"])
            self._stopped = True
            return {"whole": whole, "snapshot": self._worker.counted().dump()}
        return {"error": f"unknown command {op!r}"}


async def _child(listen_fd: int, control_fd: int) -> None:
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A terminal sends these to the whole group; the supervisor decides.
        loop.add_signal_handler(name, lambda: None)
    control = socket.socket(fileno=control_fd)
    reader, writer = await asyncio.open_connection(sock=control, limit=_MAX_COMMAND_BYTES)
    await _Child(socket.socket(fileno=listen_fd), reader, writer).run()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m proxy.worker")
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(_child(options.listen_fd, options.control_fd))


if __name__ == "__main__":
    main()
