"""Count the prompt as the client sent it, by the candidate model's own tokenizer."""

from __future__ import annotations

from dataclasses import replace

from proxy.exchange import Attempt


class Count:
    async def __call__(self, it: Attempt) -> None:
        counts = await it.model.counter.count(it.prompt.chat, it.limit.stops_counting)
        it.counts = replace(counts, unsure=(*counts.unsure, *it.prompt.unsure))
