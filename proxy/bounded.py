"""Memories that a client could fill: the oldest entry goes before there are too many. Pure."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(known: MutableMapping[_K, _V], key: _K, value: _V, limit: int) -> _V:
    """Put in, and give back. At most `limit` entries stay, the oldest of them is forgotten first."""
    if key not in known and len(known) >= limit:
        del known[next(iter(known))]
    known[key] = value
    return value
