"""How many requests are with each backend now, and whoever waits until there are none."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class _Backend:
    requests: int = 0
    idle: asyncio.Event = field(default_factory=_set_event)
    busy: asyncio.Event = field(default_factory=asyncio.Event)


class Load:
    """Of one process. `gauge` is told of every change."""

    def __init__(self, gauge: Callable[[str, int], None]) -> None:
        self._gauge = gauge
        self._backends: defaultdict[str, _Backend] = defaultdict(_Backend)

    def change(self, backend: str, by: int) -> None:
        self._gauge(backend, by)
        there = self._backends[backend]
        there.requests += by
        if there.requests:
            there.idle.clear()
            there.busy.set()
        else:
            there.busy.clear()
            there.idle.set()

    async def while_idle(self, backend: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin `work` once the backend has no request, and end it when one comes. False: it was ended."""
        there = self._backends[backend]
        await there.idle.wait()
        task = asyncio.create_task(work())
        arrival = asyncio.create_task(there.busy.wait())
        try:
            await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrival.cancel()
            finished = task.done()
            if not finished:
                task.cancel()
                await asyncio.wait({task})
        if finished:
            task.result()
        return finished
