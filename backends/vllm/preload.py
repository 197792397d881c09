"""Weights into the page cache, while the engine's Python still imports and compiles.

Several threads with large reads, because one reader does not fill a fast disk; in the order in which vLLM loads, so
that it finds what it wants first; what is in memory already is left alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

PIECE_BYTES = 16 * 1024 * 1024
THREADS = 4
MEMORY_SHARE = 0.8
"""Of the memory that is free: beyond it the first pieces would be dropped again before they are used."""
_PROBE_EVERY_BYTES = 1024 * 1024
WHOLE_FILE_FORMATS = frozenset(("auto", "hf", "safetensors", "sharded_state", "gguf"))
"""Load formats that read through the page cache; the others stream by themselves, or read nothing."""


class Preload:
    """One reading of some files. Ends by itself, or when it is cancelled."""

    def __init__(
        self,
        files: Sequence[Path],
        limit_bytes: int,
        on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """`on_progress` is called in the event loop with (bytes done, bytes in all)."""
        self._pieces = list(pieces(files, limit_bytes))
        self.total_bytes = sum(length for _, _, length in self._pieces)
        self.done_bytes = 0
        self.read_bytes = 0
        """Of those, what was not in memory before."""
        self._on_progress = on_progress
        self._next = iter(self._pieces)
        self._lock = threading.Lock()
        self._stop = threading.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        left = THREADS

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                ended.set()

        def tell(call: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(call)

        def work() -> None:
            try:
                self._work(lambda: tell(lambda: self._on_progress(self.done_bytes, self.total_bytes)))
            finally:
                tell(one_ended)

        # Daemons: a read from a dead network disk must not keep the process from ending.
        for number in range(THREADS):
            threading.Thread(target=work, name=f"preload-{number}", daemon=True).start()
        try:
            await ended.wait()
        finally:
            self._stop.set()

    def _work(self, progressed: Callable[[], None]) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        while not self._stop.is_set():
            with self._lock:
                piece = next(self._next, None)
            if piece is None:
                return
            file, offset, length = piece
            # A file that cannot be read is the engine's to tell of.
            with suppress(OSError):
                fresh = read(file, offset, buffer[:length])
                with self._lock:
                    self.read_bytes += fresh
            with self._lock:
                self.done_bytes += length
            progressed()


def pieces(files: Sequence[Path], limit_bytes: int) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, length) of what is to be read, `limit_bytes` at most."""
    for file in files:
        try:
            size = file.stat().st_size
        except OSError:
            continue
        for offset in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset, limit_bytes)
            if length <= 0:
                return
            limit_bytes -= length
            yield file, offset, length


def read(file: Path, offset: int, into: memoryview) -> int:
    """Reads a piece unless it is in memory already. The bytes that were read."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if _resident(descriptor, offset, len(into)):
            return 0
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done
    finally:
        os.close(descriptor)


def _resident(descriptor: int, offset: int, length: int) -> bool:
    """Looked at here and there: copying a hundred gigabytes that are there already would cost a core for long."""
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return False
    probe = [bytearray(1)]
    try:
        for at in (*range(offset, offset + length, _PROBE_EVERY_BYTES), offset + length - 1):
            os.preadv(descriptor, probe, at, flag)
    except OSError:  # EAGAIN: not there; EOPNOTSUPP: this file system cannot say
        return False
    return True


def limit_bytes(meminfo: str, cgroup_room: int | None) -> int:
    """How much may be read ahead: by the text of /proc/meminfo and what the container may still take. Pure."""
    available = 0
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    room = available if cgroup_room is None else min(available, cgroup_room)
    return int(room * MEMORY_SHARE)


def memory_limit_bytes() -> int:
    """`limit_bytes` of this machine and container; 0 where it cannot tell."""
    try:
        return limit_bytes(Path("/proc/meminfo").read_text(), _cgroup_room())
    except (OSError, ValueError, IndexError):
        return 0


def _cgroup_room() -> int | None:
    """By cgroup v2's memory.max and memory.stat: page cache that can be given back counts as room."""
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if most == "max":
            return None
        held = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return int(most) - int(held.get("anon", 0)) - int(held.get("unevictable", 0))
    except (OSError, ValueError):
        return None
