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

from backends.endpoint import Endpoint
from proxy.config_source import Source
from proxy.telemetry.snapshot import Snapshot

_MAX_ANSWER_BYTES = 32 * 1024 * 1024
START_S = 60.0
ANSWER_S = 10.0
SNAPSHOT_S = 2.0
SNAPSHOT_S = 2.0


class WorkerFailed(Exception):
    """The process ended, or does not answer, or could not do what it was told; the text says which."""


class WorkerRefused(WorkerFailed):
    """It answered that it cannot do this, and goes on as before."""


class WorkerProcess:
    """One worker child. Commands go one at a time, and each has a number that its answer repeats."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self._number = 0
        self.last = Snapshot()
        """The newest metrics known: what remains of it if it crashes."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, sock: socket.socket, source: Source, text: str, engines: Mapping[str, Endpoint]
    ) -> WorkerProcess:
        """Returns when the worker serves. Raises WorkerFailed; then, and when cancelled, nothing of it is left."""
        worker = await cls._launch(sock, source)
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

    @classmethod
    async def _launch(cls, sock: socket.socket, source: Source) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_ANSWER_BYTES)
            except BaseException:
                ours.close()
                raise
            launching = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
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
            )
            try:
                return cls(await asyncio.shield(launching), reader, writer)
            except asyncio.CancelledError:
                # It is started all the same, and must not be left behind.
                with suppress(OSError):
                    await cls(await launching, reader, writer).kill()
                raise
            except BaseException:
                writer.close()
                raise

    async def command(self, command: Mapping[str, Any], limit_s: float = ANSWER_S) -> dict[str, Any]:
        """`limit_s` bounds the wait for the commands before it, too. Raises WorkerFailed."""
        try:
            async with asyncio.timeout(limit_s), self._lock:
                self._number += 1
                if self._writer.is_closing():
                    raise WorkerFailed(f"worker {self.pid} has ended")
                self._writer.write(orjson.dumps({**command, "number": self._number}) + b"\n")
                answer = await self._answer()
        except (ConnectionError, TimeoutError) as error:
            raise WorkerFailed(f"worker {self.pid} does not answer ({type(error).__name__})") from None
        if "error" in answer:
            raise WorkerRefused(answer["error"])
        return answer

    async def _answer(self) -> dict[str, Any]:
        while line := await self._reader.readline():
            answer: dict[str, Any] = orjson.loads(line)
            if answer["number"] == self._number:
                return answer
            # Older: it came after we had stopped waiting for it.
        raise WorkerFailed(f"worker {self.pid} ended")

    async def snapshot(self) -> Snapshot:
        """The worker's metrics; when it is busy or does not answer in time, the last ones known."""
        with suppress(WorkerFailed):
            self.last = Snapshot.restore((await self.command({"op": "snapshot"}, SNAPSHOT_S))["snapshot"])
        return self.last

    async def stop(self, drain_s: float) -> bool:
        """True when it ended by itself and cut nothing short. Cancelling this skips the drain, not the end."""
        try:
            answer = await self.command({"op": "stop", "drain_s": drain_s}, drain_s + ANSWER_S)
            self.last = Snapshot.restore(answer["snapshot"])
            async with asyncio.timeout(ANSWER_S):
                await self._process.wait()
            return bool(answer["whole"])
        except (WorkerFailed, TimeoutError):
            return False
        finally:
            await self.kill()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        self._writer.close()
        await self._process.wait()

    async def ended(self) -> int:
        return await self._process.wait()


def _import_path() -> str:
    """The folder that this package lies in, first: installed or not, a worker runs the same code as we."""
    ours = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
