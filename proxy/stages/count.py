"""Count the prompt as the client sent it, by the candidate model's own tokenizer."""

from __future__ import annotations

from proxy import conversation
from proxy.exchange import Attempt


class Count:
    async def __call__(self, it: Attempt) -> None:
        it.counts = await conversation.exact(it.model.counter, it.prompt, it.limit.stops_counting)
