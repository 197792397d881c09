"""Logs: one JSON object a line (or text on a terminal), with secrets taken out. Message text is never logged."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Literal

import orjson

REDACTED = "[redacted]"
_NAME = r"(?:x-)?api[-_ ]?key|password|passwd|secret|(?<![a-z])token"
# Between a name and its value: `:` or `=` as in headers, JSON and queries, `', '` as in a list of pairs.
_BETWEEN = r"[\"']?(?:\s*[:=]\s*|\s*,\s*(?=b?[\"']))(?:b?[\"'])?"
_SECRET = re.compile(
    r"(?i)"
    rf"((?:proxy-)?authorization{_BETWEEN})[^\"',;\r\n]+"
    r"|(\bbearer\s+)[^\s\"',;]+"
    rf"|((?:{_NAME}){_BETWEEN})[^\s\"',;&]+"
    r"|(openai-insecure-api-key\.)[^\s\"',;]+"
    # Bounded, so that a long word costs no more than its length.
    r"|(\b[a-z][a-z0-9+.\-]{0,20}://[^\s/:@]*:)[^\s/]+(?=@)"
    r"|\b(?:sk|rk|pk|xai)-[a-z0-9_\-]{8,}"
    r"|\b(?:hf|gsk|ghp)_[a-z0-9]{8,}"
)
_SECRET_NAME = re.compile(rf"(?i)^(?:(?:proxy-)?authorization|cookie|.*(?:{_NAME}))$")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

Format = Literal["auto", "json", "text"]


def redact(text: str) -> str:
    """Take out what looks like a key: bearer tokens, `sk-...`, passwords in URLs, `key=value` pairs."""

    def put(match: re.Match[str]) -> str:
        lead = next((group for group in match.groups() if group), "")
        return lead + REDACTED

    return _SECRET.sub(put, text)


def _clean(value: object, name: object = "") -> object:
    """A field's value without secrets, however deep; what its name says is secret goes whole."""
    if isinstance(name, str) and _SECRET_NAME.match(name) and value is not None:
        return REDACTED
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _clean(inner, key) for key, inner in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return [value[0], _clean(value[1], value[0])]
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(inner) for inner in value]
    return redact(str(value))


def _dumps(line: dict[str, object]) -> str:
    try:
        return orjson.dumps(line).decode()
    except TypeError:
        # Lone surrogates, integers of more than 64 bits: escaped, since a line must not be lost over them.
        return json.dumps(line)


class JsonFormatter(logging.Formatter):
    """One line, one object: time, level, logger, message, and the fields given by `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                line[key] = _clean(value, key)
        if record.exc_info:
            line["trace"] = redact(self.formatException(record.exc_info))
        return _dumps(line)


class TextFormatter(logging.Formatter):
    """For a person at a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{k}={_clean(v, k)}" for k, v in vars(record).items() if k not in _STANDARD)
        return redact(super().format(record) + (f"  {extra}" if extra else ""))


def configure(level: str, style: Format) -> None:
    """Send all logs to stderr. `auto`: text on a terminal, JSON elsewhere."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
