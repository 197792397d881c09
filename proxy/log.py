"""Logs: one JSON object a line (or text on a terminal), with secrets taken out. Message text is never logged."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Literal

import orjson

REDACTED = "[redacted]"
_SECRET = re.compile(
    r"(?i)(\bbearer\s+)[^\s\"',;]+"
    r"|((?:api[-_]?key|x-api-key|authorization|password|token|secret)[\"']?\s*[:=]\s*[\"']?(?!bearer\b))[^\s\"',;&]+"
    r"|(openai-insecure-api-key\.)[^\s\"',;]+"
    r"|(\w+://[^\s/:@]*:)[^\s/@]+(?=@)"
    r"|\b(?:sk|rk|pk)-[A-Za-z0-9_\-]{8,}"
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

Format = Literal["auto", "json", "text"]


def redact(text: str) -> str:
    """Take out what looks like a key: bearer tokens, `sk-...`, passwords in URLs, `key=value` pairs."""

    def put(match: re.Match[str]) -> str:
        lead = next((group for group in match.groups() if group), "")
        return lead + REDACTED

    return _SECRET.sub(put, text)


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
                line[key] = redact(value) if isinstance(value, str) else value
        if record.exc_info:
            line["trace"] = redact(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(logging.Formatter):
    """For a person at a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD)
        return redact(super().format(record) + (f"  {extra}" if extra else ""))


def configure(level: str, style: Format) -> None:
    """Send all logs to stderr. `auto`: text on a terminal, JSON elsewhere."""
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
