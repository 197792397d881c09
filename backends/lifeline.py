"""The child's end of a supervised child process: it ends when its parent has ended, however that ended.

The lifeline is stdin, a pipe whose other end only the parent holds. A program of ours calls `hold`; another
program is started with the argv that `watched` makes, which runs this file as a small process that
holds the lifeline for it, and for all that it starts in its process group. Imports only the standard
library, because that process has nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

PARENT_PID = "CHATFUSE_PARENT_PID"
"""Environment variable in which `Child` tells its process id."""

_PR_SET_PDEATHSIG = 1


def hold() -> None:
    """For a child of ours, after it has read its first line: end when the parent has ended."""
    parent = int(os.environ.get(PARENT_PID, os.getppid()))
    _signal_when_parent_dies(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()


def watched(argv: Sequence[str]) -> list[str]:
    """The command line that runs another's program with its lifeline held. Its stdin is empty."""
    # Isolated: it needs no package, and this folder must not become a place to import from.
    return [sys.executable, "-I", "-S", __file__, *argv]


def _signal_when_parent_dies(number: int) -> None:
    # Against a parent whose end of stdin is still open somewhere, in a process that it forked. (By
    # "parent" the kernel means the thread that started us: the event loop's.)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _end_with_stdin() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    _end_group()


def _end_group() -> NoReturn:
    # Started by hand in a shell, the group is not ours to kill.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _watch(argv: Sequence[str]) -> int:
    parent = int(os.environ.pop(PARENT_PID, os.getppid()))

    def on_sigterm(_number: int, _frame: FrameType | None) -> None:
        # Sent to the group by a parent that lives: the program decides what it does, and we wait for it.
        if os.getppid() != parent:
            _end_group()

    # A handler, not SIG_IGN: the program would inherit that.
    signal.signal(signal.SIGTERM, on_sigterm)
    _signal_when_parent_dies(signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    try:
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: S603 (the argv of a ChildSpec)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 127
    threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()
    code = program.wait()
    if code < 0:
        # End as it ended, so that the parent can tell.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_watch(sys.argv[1:]))
