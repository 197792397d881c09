"""How an engine is, told by its supervisor to the workers through two small files in a folder of its own.

Files, because workers come and go, and because one look at `ready` for each request costs a microsecond.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_READY = "ready"
_TEXT = "state"
_UNKNOWN = "the engine is not running"


class StateWriter:
    """The supervisor's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, *, ready: bool, text: str) -> None:
        """`text` says what it is doing, for people."""
        if not self._folder.is_dir():
            return  # stopped
        if not ready:
            (self._folder / _READY).unlink(missing_ok=True)
        new = self._folder / f"{_TEXT}.new"
        new.write_text(text)
        new.replace(self._folder / _TEXT)
        if ready:
            (self._folder / _READY).touch()


class StateReader:
    """A worker's end."""

    def __init__(self, folder: str) -> None:
        self._ready = os.path.join(folder, _READY)
        self._text = Path(folder, _TEXT)

    @property
    def ready(self) -> bool:
        return os.path.exists(self._ready)

    @property
    def text(self) -> str:
        with contextlib.suppress(OSError):
            return self._text.read_text()
        return _UNKNOWN
