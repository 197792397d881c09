"""JSON as bytes, whatever strings it holds and however deep it is. Pure."""

from __future__ import annotations

import json
import marshal
from typing import Any

import orjson


def json_bytes(value: Any, *, sort_keys: bool = False) -> bytes:
    """orjson's where it can; it refuses half a surrogate pair, which JavaScript clients send every day.

    Raises RecursionError for what is nested about a thousand deep: it can be read, and not be written again.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, sort_keys=sort_keys).encode()


def digestible(value: Any, *, sort_keys: bool = False) -> bytes:
    """Bytes that stand for a JSON value, to be digested and not to be read: any that was parsed has some."""
    try:
        return json_bytes(value, sort_keys=sort_keys)
    except RecursionError:
        # Version 2 writes a value alike wherever its parts are shared; it goes 2,000 deep, the parser 1,024.
        return marshal.dumps(value, 2)
