"""Summaries while they are made: wanted in the background, single flight, never waited for."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from proxy import config
from proxy.bounded import remember
from proxy.history.summary import Summarized
from proxy.state.summaries import SummaryBook
from proxy.summarizer import SummaryFailed
from proxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

AT_ONCE: Final = 2
"""Summaries that one process has written at the same time."""
WAITING: Final = 100
FAILURES: Final = 2
_FAILURES_REMEMBERED: Final = 10_000

Write = Callable[[Summarized, config.Summary], Awaitable[str]]


async def _nobody(work: Summarized, settings: config.Summary) -> str:
    raise SummaryFailed("no model writes summaries here")


class Summaries:
    """Implements `proxy.memories.Book`. Lives as long as the process: a reload loses nothing."""

    def __init__(self, metrics: Metrics, book: SummaryBook | None = None) -> None:
        self.secret = os.urandom(32)
        self.write: Write = _nobody
        """Who writes: set by the runtime in force, whose models write."""
        self._metrics = metrics
        self._book = book or SummaryBook()
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._failed: dict[bytes, int] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def peek(self, key: bytes) -> str:
        """What this boundary would be sent with now; empty: without a summary."""
        decided = self._book.decided(key)
        return decided if decided is not None else self._book.written(key) or ""

    def decide(self, key: bytes, text: str) -> None:
        """It is sent with this, from now on always."""
        self._book.decide(key, text)

    def written(self, key: bytes) -> str:
        """The text, whether or not its boundary was sent with it."""
        return self._book.written(key) or ""

    def pending(self, key: bytes) -> bool:
        return key in self._running

    async def ready(self, key: bytes) -> None:
        """Until it is no longer being written. For whoever works ahead; no request calls it."""
        if (task := self._running.get(key)) is not None:
            await asyncio.wait({task})

    def want(self, key: bytes, settings: config.Summary, work: Callable[[], Summarized]) -> bool:
        """Have a summary written, unless it is there, is being written, or has failed too often. True: it is coming."""
        if key in self._running:
            return True
        if self._book.written(key) is not None or self._book.decided(key) is not None:
            return False
        if self._failed.get(key, 0) >= FAILURES or len(self._running) >= WAITING:
            return False
        task = asyncio.create_task(self._make(work(), settings))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return True

    async def _make(self, work: Summarized, settings: config.Summary) -> None:
        outcome = "failed"
        try:
            async with self._room:
                text = await self.write(work, settings)
            outcome = "written"
            self._book.write(work.key, text)
        except SummaryFailed as error:
            log.warning("a summary was not written: %s", error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:
            log.exception("a summary was not written")
        finally:
            if outcome == "failed":
                remember(self._failed, work.key, self._failed.get(work.key, 0) + 1, _FAILURES_REMEMBERED)
            self._metrics.summary(outcome)

    async def settled(self) -> None:
        """Until nothing is being written."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    async def stop(self) -> None:
        tasks = set(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
