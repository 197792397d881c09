"""What every engine that runs as a supervised child says of itself."""

from __future__ import annotations

from backends.child import Child, State


class Supervised:
    """An engine whose process is a `Child`, from its first start on."""

    def __init__(self) -> None:
        self._child: Child | None = None

    @property
    def state(self) -> State:
        return self._child.state if self._child is not None else State.STOPPED

    @property
    def last_error(self) -> str | None:
        return self._child.last_error if self._child is not None else None

    @property
    def pid(self) -> int | None:
        """Of the process that is watched: an engine's own may be children of it."""
        return self._child.pid if self._child is not None else None

    @property
    def restarts(self) -> int:
        return self._child.restarts if self._child is not None else 0
