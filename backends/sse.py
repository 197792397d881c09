"""Server-sent event framing on bytes: whole events out, whatever the cuts and line ends. Pure.

Source: the event stream format of the HTML standard, section 9.2.5. A line ends with CRLF, LF or CR; an
empty line ends an event. Bytes are never altered: the concatenation of everything given out, with
`rest()`, is what was fed.
"""

from __future__ import annotations

import re

_BOUNDARY = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
MAX_EVENT_BYTES = 256 * 1024
"""An unfinished event longer than this is given out as it is: nothing we look for is that long."""


class Framer:
    """Cuts a byte stream after each event.

    A CR that ends what was fed may be half of a CRLF. As the second of two line ends it still ends the
    event at once; the LF that may follow is then given out at the head of the next block, where it is an
    empty line and means nothing. As the first of two it waits for the next byte.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """All bytes up to the end of the last whole event; what follows waits for its end."""
        if self._pending:
            data = self._pending + data
        end = _last_boundary(data)
        if len(data) - end > MAX_EVENT_BYTES:
            end = len(data) - (1 if data.endswith(b"\r") else 0)
        self._pending = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What is left when the stream ends without an empty line."""
        rest, self._pending = self._pending, b""
        return rest


def _last_boundary(data: bytes) -> int:
    """Where the last whole event ends; 0 when there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    if b"\r" not in data:
        return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
    end = 0
    for match in _BOUNDARY.finditer(data):
        end = match.end()
    return end


def ends_event(block: bytes) -> bool:
    """Whether the last byte of a block is the end of an event, so that something else may follow."""
    return not block or block.endswith((b"\n\n", b"\r\r", b"\n\r", b"\r\n\r\n"))


def split_events(block: bytes) -> list[bytes]:
    """The events of a block that `Framer.feed` gave out, each with the empty line that ends it."""
    events = []
    start = 0
    for match in _BOUNDARY.finditer(block):
        events.append(block[start : match.end()])
        start = match.end()
    if start < len(block):
        events.append(block[start:])
    return events


def event_data(event: bytes) -> bytes | None:
    """The data of one event, its lines joined by LF; None when it has no data line (a comment, say)."""
    lines = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None
