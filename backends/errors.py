"""What can go wrong with an upstream, in our words.

Library errors are mapped to these where the upstream is read (`backends.http`) and nowhere else, so that
an error of writing to the client is never taken for one of the upstream.
"""

from __future__ import annotations


class BackendError(Exception):
    """An upstream gave no answer, or only a part of one. The text never holds a key or message text."""

    retryable = True
    """Whether another target may answer where this one did not (before the first byte to the client)."""


class ConnectFailed(BackendError):
    """No connection: refused, unreachable, DNS, TLS."""


class NotReady(ConnectFailed):
    """An engine of ours is being started, or started again. The text says what it is doing."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TimedOut(BackendError):
    """One of the four timers ran out."""

    def __init__(self, timer: str, limit_s: float, backend: str) -> None:
        super().__init__(f"backend {backend!r} sent nothing: {timer} = {limit_s:g} s ran out")
        self.timer = timer
        self.limit_s = limit_s


class Interrupted(BackendError):
    """The connection broke after the request was sent, or in the middle of the reply."""


class BadReply(BackendError):
    """What came back is not HTTP, or not what this request can be answered with."""


class ClientBodyFailed(BackendError):
    """The client's own upload broke off while it was being passed on. Nobody else can answer that."""

    retryable = False


class Uncountable(BackendError):
    """The upstream would not render or tokenize this prompt; it is its to refuse when it is sent."""
