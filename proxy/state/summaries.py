"""The summaries that there are, and which boundaries were sent with one. In memory, bounded, first writer wins."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 200
"""What an entry costs besides its text."""


class SummaryBook:
    """Texts by key. What was not used for longest is forgotten first.

    A boundary of which the decision is forgotten is decided anew: its prefix changes once, and holds again.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._written: OrderedDict[bytes, str] = OrderedDict()
        self._decided: OrderedDict[bytes, str] = OrderedDict()
        self._bytes = 0

    def written(self, key: bytes) -> str | None:
        return _used(self._written, key)

    def decided(self, key: bytes) -> str | None:
        """What the boundary was first sent with, which is what it is sent with always; empty: with none."""
        return _used(self._decided, key)

    def write(self, key: bytes, text: str) -> str:
        """Keep a summary. The first one stands, and is returned."""
        return self._put(self._written, key, text)

    def decide(self, key: bytes, text: str) -> str:
        """Settle what a boundary is sent with. The first decision stands, and is returned."""
        return self._put(self._decided, key, text)

    def _put(self, entries: OrderedDict[bytes, str], key: bytes, text: str) -> str:
        there = _used(entries, key)
        if there is not None:
            return there
        entries[key] = text
        self._bytes += len(text.encode("utf-8", "surrogatepass")) + _ENTRY_BYTES
        while self._bytes > self._max_bytes and len(entries) > 1:
            _, old = entries.popitem(last=False)
            self._bytes -= len(old.encode("utf-8", "surrogatepass")) + _ENTRY_BYTES
        return text


def _used(entries: OrderedDict[bytes, str], key: bytes) -> str | None:
    text = entries.get(key)
    if text is not None:
        entries.move_to_end(key)
    return text
