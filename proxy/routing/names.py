"""Model names and patterns. Pure."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern, in which `*` stands for anything and all else for itself."""
    return pattern == name or ("*" in pattern and _pattern(pattern).fullmatch(name) is not None)
