"""The supervisor's side of a worker process: start it, speak to it, see it end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from backends.embedded import Endpoint
from proxy.config_source import Source
from proxy.telemetry.snapshot import Snapshot

_MAX_ANSWER_BYTES = 32 * 1024 * 1024
START_S = 60.0
ANSWER_S = 10.0


class WorkerFailed(Exception):
    """The process ended, or answered with an error; the text says which."""


class WorkerProcess:
    """One worker child. Commands go one at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self.last = Snapshot()
        """The newest metrics known: what remains of it if it crashes."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, sock: socket.socket, source: Source, text: str, engines: Mapping[str, Endpoint]
    ) -> WorkerProcess:
        """Returns when the worker serves. Raises WorkerFailed."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # not from the current folder, which may hold a package of the same name
                "-m",
                "proxy.worker",
                "--listen-fd",
                str(sock.fileno()),
                "--control-fd",
                str(theirs.fileno()),
                pass_fds=(sock.fileno(), theirs.fileno()),
                env={**os.environ, **source.environ, "PYTHONPATH": _import_path()},
                stdin=asyncio.subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_ANSWER_BYTES)
        worker = cls(process, reader, writer)
        try:
            await worker.command(
                {
                    "op": "start",
                    "path": str(source.path) if source.path is not None else None,
                    "embedded": source.embedded,
                    "text": text,
                    "engines": {name: asdict(endpoint) for name, endpoint in engines.items()},
                },
                START_S,
            )
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def command(self, command: Mapping[str, Any], limit_s: float = ANSWER_S) -> dict[str, Any]:
        """Raises WorkerFailed."""
        async with self._lock:
            try:
                self._writer.write(orjson.dumps(command) + b"\n")
                async with asyncio.timeout(limit_s):
                    line = await self._reader.readline()
            except (ConnectionError, TimeoutError) as error:
                raise WorkerFailed(f"worker {self.pid} does not answer ({type(error).__name__})") from None
            if not line:
                raise WorkerFailed(f"worker {self.pid} ended")
        answer: dict[str, Any] = orjson.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    async def snapshot(self) -> Snapshot:
        """The worker's metrics; when it does not answer in time, the last ones known."""
        with suppress(WorkerFailed):
            self.last = Snapshot.restore((await self.command({"op": "snapshot"}, 2.0))["snapshot"])
        return self.last

    async def stop(self, drain_s: float) -> bool:
        try:
            answer = await self.command({"op": "stop", "drain_s": drain_s}, drain_s + ANSWER_S)
            self.last = Snapshot.restore(answer["snapshot"])
            whole = bool(answer["whole"])
        except WorkerFailed:
            whole = False
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._process.wait()
        except TimeoutError:
            whole = False
        await self.kill()
        return whole

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._writer.close()

    async def ended(self) -> int:
        return await self._process.wait()


def _import_path() -> str:
    """The folder that this package lies in, first: installed or not, a worker runs the same code as we."""
    ours = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
