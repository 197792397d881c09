"""aiohttp's errors become ours here, where an upstream is read, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from backends.errors import BackendError, BadReply, ConnectFailed, Interrupted


@contextmanager
def mapped(backend: str) -> Iterator[None]:
    """Messages name the backend, never an address or a header."""
    try:
        yield
    except BackendError:
        raise
    except aiohttp.ConnectionTimeoutError:
        raise ConnectFailed(f"backend {backend!r} did not take the connection in time") from None
    except aiohttp.ClientConnectorError as error:
        # Not the error's own text: it holds the address.
        errno = error.os_error.errno
        why = os.strerror(errno) if isinstance(errno, int) and errno > 0 else type(error.os_error).__name__
        raise ConnectFailed(f"backend {backend!r} cannot be reached: {why}") from None
    except aiohttp.WSServerHandshakeError as error:
        raise BadReply(f"backend {backend!r} refused the WebSocket with status {error.status}") from None
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError):
        raise Interrupted(f"backend {backend!r} closed the connection") from None
    except aiohttp.ClientResponseError:
        raise BadReply(f"backend {backend!r} answered with something that is not HTTP") from None
    except aiohttp.ClientError as error:
        raise Interrupted(f"backend {backend!r}: {type(error).__name__}") from None
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise Interrupted(f"backend {backend!r}: {error.strerror or type(error).__name__}") from None
