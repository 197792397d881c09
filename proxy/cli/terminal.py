"""How things look: colours on a terminal only, tables, one line of progress."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO


class Style:
    """ANSI styles for one stream; plain text where it is no terminal, or NO_COLOR is set (no-color.org)."""

    def __init__(self, stream: TextIO) -> None:
        self.on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def _put(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.on else text

    def bold(self, text: str) -> str:
        return self._put("1", text)

    def dim(self, text: str) -> str:
        return self._put("2", text)

    def good(self, text: str) -> str:
        return self._put("32", text)

    def bad(self, text: str) -> str:
        return self._put("31", text)

    def warn(self, text: str) -> str:
        return self._put("33", text)


def problem_lines(problems: Sequence[tuple[str, str]], style: Style) -> list[str]:
    """One line for each problem of a config."""
    return [
        f"{style.bad('error')} {style.bold(key) + ': ' if key else ''}{problem}" for key, problem in problems
    ]


def table(rows: Sequence[Sequence[str]], style: Style) -> str:
    """Columns aligned, the first row as the head, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for n, row in enumerate(rows):
        cells = [
            cell.rjust(width) if n and _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        lines.append(style.bold(line) if n == 0 else line)
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").replace(" ", "").isdigit()


class ProgressLine:
    """What start-up is waiting for: one line that is overwritten on a terminal, nothing elsewhere."""

    _SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._style = Style(stream)
        self._step = 0

    def show(self, what: str) -> None:
        """`what`: the line; empty when there is nothing to wait for any more."""
        if not self._stream.isatty():
            return
        if not what:
            self.clear()
            return
        mark = self._SPINNER[self._step % len(self._SPINNER)]
        self._step += 1
        self._stream.write(f"\r\033[K{self._style.dim(mark)} starting: {what}")
        self._stream.flush()

    def clear(self) -> None:
        if self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
