"""Model names and patterns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


def find(entries: Iterable[Entry], name: str) -> Entry | None:
    """The entry for a name: the one that is called so, else the first whose pattern means it."""
    meant: Entry | None = None
    for entry in entries:
        if entry.name == name and "*" not in name:
            return entry
        if meant is None and matches(entry.name, name):
            meant = entry
    return meant


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern, in which `*` stands for anything and all else for itself."""
    return pattern == name or ("*" in pattern and _pattern(pattern).fullmatch(name) is not None)
