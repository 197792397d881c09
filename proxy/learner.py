"""Learns what upstreams are, in the background: their windows, whether they count, whether they count as we do.

No request waits for it. A server that cannot be asked is asked again soon; one that could is asked now and then,
since it may come back with another window, and at once after a connection to it has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.base import Backend, Oracle
from backends.errors import BackendError
from proxy.tokens.counts import Counter
from proxy.tokens.self_check import check
from proxy.tokens.truth import Truth

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 5.0
AGAIN_S = 60.0
LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Checkable:
    """A model whose local counter can be compared with its server's own."""

    model: str
    counter: Counter
    oracle: Oracle
    truth: Truth


class Served(Protocol):
    """The models of a config, as far as they concern whoever learns."""

    def learned(self, backend: str) -> None:
        """A backend has told something new: what was derived from it is out of date."""
        ...

    def checkable(self, backend: str) -> Sequence[Checkable]: ...


class Learner:
    """One task for each backend that tells anything of itself."""

    def __init__(self, backends: Mapping[str, Backend], served: Served) -> None:
        self._served = served
        self._backends = [backend for backend in backends.values() if backend.tells]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(backend)) for backend in self._backends]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, backend: Backend) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                async with asyncio.timeout(LIMIT_S):
                    if await backend.learn():
                        self._served.learned(backend.name)
                        await self._check(backend)
            except (BackendError, TimeoutError):
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, LONGEST_RETRY_S)
                continue
            except Exception:
                log.exception("backend %r: what it says of itself cannot be used", backend.name)
            retry_s = FIRST_RETRY_S
            await backend.lost(AGAIN_S)

    async def _check(self, backend: Backend) -> None:
        for each in self._served.checkable(backend.name):
            result = await check(each.counter, each.oracle)
            each.truth.distrusted = result.wrong > 0
            if result.wrong:
                log.warning(
                    "model %r: backend %r counts otherwise than we do in %d of %d checks (first: we %d, it %d), "
                    "so it is asked for every count: look at the model's tokenizer and chat_template",
                    each.model,
                    backend.name,
                    result.wrong,
                    result.made,
                    result.ours,
                    result.theirs,
                )
            else:
                log.info("model %r: %d counts are equal to the server's own", each.model, result.made)
