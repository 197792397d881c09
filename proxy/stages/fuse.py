"""The fuse: a prompt over the threshold is refused at once, before anything else is spent on it."""

from __future__ import annotations

from proxy.errors import FuseTripped
from proxy.exchange import Attempt, FuseStatus, Limit
from proxy.tokens.counts import Counts


class Fuse:
    async def __call__(self, it: Attempt) -> None:
        it.fuse_status = verdict(it.counts, it.limit)
        if it.fuse_status == "tripped" and it.limit.enforced:
            threshold = it.limit.max_context_tokens or 0
            raise FuseTripped(
                tokens=it.counts.tokens,
                complete=it.counts.complete,
                limit=threshold,
                what="the fuse of this service",
            )


def verdict(counts: Counts, limit: Limit) -> FuseStatus:
    """`tripped`: over the threshold (in observe mode it goes on all the same); `allowed`: over, and may be."""
    if limit.max_context_tokens is None or counts.tokens <= limit.max_context_tokens:
        return "ok"
    return "allowed" if limit.allowed else "tripped"
