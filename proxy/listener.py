"""The listening side of HTTP: aiohttp's low-level server, with errors in the API's own shape.

The low-level server, and no `Application`: a handful of paths need no router, middlewares or signals, and
those cost 10 to 20 % of a small request.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from proxy.dialects.paths import spoken_at
from proxy.errors import Internal, InvalidRequest, ProxyError

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
MAX_HEADER_BYTES = 64 * 1024
BACKLOG = 2048


class _Connection(RequestHandler):
    """One client connection. What is no HTTP, or too much of it, gets an error object like any other."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, no error can be sent")
        if status == 500:
            log.error("unhandled error", exc_info=exc)
            error: ProxyError = Internal("an error of the proxy; its log has the details")
        else:
            log.debug("not HTTP: %s", type(exc).__name__)
            if type(exc).__name__ == "LineTooLong":
                status = 431  # RFC 6585 section 5
            error = InvalidRequest(_reason(exc), status=status)
        body = spoken_at(request.path).error_body(error)
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response


def _reason(exc: BaseException | None) -> str:
    """What was wrong with the bytes, without quoting them: they may hold a key."""
    if isinstance(exc, BadHttpMethod):
        return "the request is not HTTP/1.1 (is the client using https?)"
    if isinstance(exc, HttpProcessingError):
        kind = type(exc).__name__
        if kind == "LineTooLong":
            return f"a header or the request line is longer than the limit of {MAX_HEADER_BYTES} bytes"
        return f"the request is not valid HTTP/1.1 ({kind})"
    return "the request is not valid HTTP/1.1"


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class Listener:
    """A handler on an open socket. `handler_cancellation`: a client that leaves stops what is done for it."""

    def __init__(self, handler: Handler, *, header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._server = _Server(
            handler,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=header_bytes,
            max_field_size=header_bytes,
            lingering_time=2.0,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1.0)
        self._site: web.SockSite | None = None

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        await self._runner.setup()
        self._site = web.SockSite(self._runner, sock, ssl_context=tls, backlog=BACKLOG)
        await self._site.start()

    async def stop_listening(self) -> None:
        """No new connections; idle ones are closed; requests in progress go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        self._server.pre_shutdown()

    async def close(self) -> None:
        await self._runner.cleanup()


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket that worker processes can inherit. Raises OSError that names the address."""
    try:
        return _open_socket(host, port)
    except OSError as error:
        raise OSError(error.errno, f"{host} port {port}: {error.strerror or error}") from None


def _open_socket(host: str, port: int) -> socket.socket:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, proto, _, address = infos[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
