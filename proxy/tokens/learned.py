"""A counter that heeds what replies have taught: the `Counter` that a served model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.tokens.counts import Counter, Counts
from proxy.tokens.truth import Truth


class LearnedCounter:
    """Implements `Counter`: the local one, with the server's offsets; the server's own where ours is not trusted."""

    def __init__(self, local: Counter, truth: Truth, oracle: Counter | None = None) -> None:
        self.local = local
        self.oracle = oracle
        self._truth = truth

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        if self._truth.distrusted and self.oracle is not None:
            return await self.oracle.count(body, limit)
        counts = await self.local.count(body, limit)
        # What a server adds to a chat it does not add to a plain prompt.
        offset = 0 if "prompt" in body else self._truth.offset(body)
        if not offset:
            return counts
        return replace(counts, tokens=max(0, counts.tokens + offset))

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
        # Of the local one always: the grid of cuts must not move because trust did.
        return await self.local.weigh(body, units)

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        return await self.local.clip(text, head_tokens, tail_tokens)
