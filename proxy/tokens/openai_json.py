"""JSON as OpenAI's renderer writes it, for values that came from a client and may be nested without end."""

from __future__ import annotations

import json
from typing import Any

COMPACT = (",", ":")


def dumped(value: Any, *, ascii_only: bool = False, separators: tuple[str, str] | None = None) -> str:
    """The value as JSON; empty where it is nested too deeply to be written."""
    try:
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    except (ValueError, TypeError, RecursionError):
        return ""


def parsed(text: str) -> tuple[Any, bool]:
    """A text read as JSON and True, or the text itself and False where it is none."""
    try:
        value = json.loads(text)
        json.dumps(value)  # what is read at the edge of the recursion limit may not be written
    except (ValueError, RecursionError):
        return text, False
    return value, True
