"""JSON as bytes, whatever strings it holds. Pure."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_bytes(value: Any, *, sort_keys: bool = False) -> bytes:
    """orjson's where it can; it refuses half a surrogate pair, which JavaScript clients send every day."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, sort_keys=sort_keys).encode()
