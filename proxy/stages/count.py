"""Count the prompt as the client sent it, by the candidate model's own tokenizer."""

from __future__ import annotations

from proxy.exchange import Attempt


class Count:
    async def __call__(self, it: Attempt) -> None:
        it.counts = await it.model.counter.count(it.prompt.fields, it.limit.stops_counting)
