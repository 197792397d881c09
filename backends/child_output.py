"""What a child process writes and how it ends, in words: lines out of bytes, the few that matter, its exit."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

_MAX_LINE_BYTES = 64 * 1024

_TELLING = re.compile(
    r"error|exception|fail|fatal|abort|assert|killed|denied|no such|not found|out of memory|cannot|could not",
    re.IGNORECASE,
)


def what_mattered(lines: Sequence[str], keep: int = 3, max_chars: int = 600) -> str:
    """The last lines that speak of an error; when none does, the last lines."""
    telling = [line for line in lines if _TELLING.search(line)] or list(lines)
    return " | ".join(line.strip() for line in telling[-keep:])[-max_chars:]


def how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "ended"
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


class Lines:
    """Bytes in, lines out, whatever the cuts. A carriage return ends a line too: progress bars use it."""

    def __init__(self, max_bytes: int = _MAX_LINE_BYTES) -> None:
        self._rest = b""
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = re.split(rb"[\r\n]", self._rest + data)
        if len(self._rest) > self._max_bytes:
            # Output without line ends must not fill our memory.
            whole.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in whole if line.strip()]

    def end(self) -> list[str]:
        return self.feed(b"\n")
