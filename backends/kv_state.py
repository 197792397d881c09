"""What an engine says of its KV memory and its queue. None: it does not say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvState:
    """One engine now, its ranks added up (`used_ratio`: the fullest of them)."""

    used_ratio: float | None = None
    """Of the KV cache; requests that run, and what is kept for prefixes where the engine counts it."""
    blocks: int | None = None
    block_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prefix_hit_tokens: int | None = None
    prefix_query_tokens: int | None = None
    unused_ratio: float | None = None
    """Of the KV memory that is taken: what lies unused in the last block of each request."""

    @property
    def room_tokens(self) -> int | None:
        """What new requests can take before one is preempted."""
        if self.blocks is None or self.block_tokens is None or self.used_ratio is None:
            return None
        return int(self.blocks * self.block_tokens * (1.0 - self.used_ratio))
