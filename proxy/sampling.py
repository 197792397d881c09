"""Replies that report no usage teach nothing; of those, a few are counted again by the server itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from backends.errors import BackendError
from proxy.exchange import Attempt
from proxy.tokens.learned import LearnedCounter

log = logging.getLogger(__name__)

EVERY: Final = 20
"""One in so many is asked about: an answer costs the server a rendering, and its tokens are not generated."""
LIMIT_S: Final = 10.0

Learned = Callable[[Attempt, int], None]


class Sampler:
    """`learned` is told the server's own count of an attempt."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._seen = 0
        self._asking: asyncio.Task[None] | None = None

    def consider(self, attempt: Attempt) -> None:
        """After an answer. Returns at once."""
        counter = attempt.model.counter
        if (
            attempt.exchange.progress.usage_prompt is not None
            or not isinstance(counter, LearnedCounter)
            or counter.oracle is None
            or not attempt.shaped.counts.exact
        ):
            return
        self._seen += 1
        if self._seen % EVERY != 1 or (self._asking is not None and not self._asking.done()):
            return
        self._asking = asyncio.create_task(self._ask(attempt, counter))

    async def _ask(self, attempt: Attempt, counter: LearnedCounter) -> None:
        assert counter.oracle is not None
        prompt = attempt.prompt
        try:
            async with asyncio.timeout(LIMIT_S):
                counts = await counter.oracle.count(prompt.dialect.view(prompt, attempt.shaped.edits).chat)
        except (BackendError, TimeoutError):
            return
        if counts.exact:
            self._learned(attempt, counts.tokens)

    async def settled(self) -> None:
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
