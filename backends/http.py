"""The only aiohttp client code: one connection pool for each upstream, timers, and the mapping of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import orjson
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from backends import headers as rules
from backends.base import Auth, Headers, Readiness, RefusedList, Timeouts, UpstreamRequest
from backends.errors import (
    BackendError,
    BadReply,
    ClientBodyFailed,
    ConnectFailed,
    Interrupted,
    TimedOut,
)

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

_NO_AUTO_HEADERS = frozenset((hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE))
_MAX_HEADER_BYTES = 64 * 1024
KEEPALIVE_S = 4.0
"""Idle connections are dropped after this. Below uvicorn's 5 s, so that the upstream is not first."""
_WRITE_BYTES = 1024 * 1024
_MAX_MODEL_LIST_BYTES = 16 * 1024 * 1024

_connection_is_new: ContextVar[list[bool] | None] = ContextVar("connection_is_new", default=None)


class _Connector(aiohttp.TCPConnector):
    """Tells the request that is being sent whether its connection was opened for it."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's name)
    ) -> ResponseHandler:
        flag = _connection_is_new.get()
        if flag is not None:
            flag[0] = True
        return await super()._create_connection(req, traces, timeout)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """One upstream. `base_url` is what an SDK would be given: it usually ends in `/v1`."""

    name: str
    base_url: str
    auth: Auth = "client"
    key: str | None = field(default=None, repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    ask_usage: str = "auto"
    keepalive_s: float = KEEPALIVE_S


class HttpBackend:
    """An upstream that is spoken to over HTTP/1.1. Implements `backends.base.Backend`."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._root = options.base_url.rstrip("/")
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None
        self._usage_refused = False
        self._unreachable = ""

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def auth(self) -> Auth:
        return self._options.auth

    @property
    def ask_usage(self) -> bool:
        asks = self._options.ask_usage
        return asks == "on" or (asks == "auto" and not self._usage_refused)

    def window_tokens(self, model: str) -> int | None:
        return None

    def refuse_usage(self) -> None:
        self._usage_refused = True

    def url(self, path: str) -> URL:
        """The address for a raw client path: what follows `/v1` is appended to the base URL as it is."""
        return URL(self._root + path.removeprefix("/v1"), encoded=True)

    async def send(self, request: UpstreamRequest) -> HttpReply:
        upload = _Upload(request.body) if isinstance(request.body, AsyncIterable) else None
        fields = self._fields(request)
        if isinstance(request.body, bytes):
            fields[hdrs.CONTENT_LENGTH] = str(len(request.body))
        elif upload is not None:
            length = next((v for n, v in request.headers if n.lower() == "content-length"), None)
            if length is not None:
                fields[hdrs.CONTENT_LENGTH] = length

        def data() -> bytes | AsyncIterator[bytes] | None:
            if isinstance(request.body, bytes):
                return request.body if len(request.body) <= _WRITE_BYTES else _slices(request.body)
            return upload.chunks() if upload is not None else None

        is_new = [False]
        _connection_is_new.set(is_new)
        try:
            return await self._attempt(self._session(pooled=True), request, fields, data())
        except Interrupted:
            if upload is not None and upload.error is not None:
                raise upload.blame() from None
            if is_new[0] or upload is not None:
                raise
        # A kept connection that the upstream was about to close fails before any byte of a reply.
        # The request is sent once more, on a connection that is certainly fresh.
        return await self._attempt(self._session(pooled=False), request, fields, data())

    async def _attempt(
        self,
        session: aiohttp.ClientSession,
        request: UpstreamRequest,
        fields: CIMultiDict[str],
        data: bytes | AsyncIterator[bytes] | None,
    ) -> HttpReply:
        timeouts = self._options.timeouts
        loop = asyncio.get_running_loop()
        started = loop.time()
        head_s, timer = _head_limit(timeouts)
        try:
            with _mapped(self.name):
                async with asyncio.timeout(head_s):
                    response = await session.request(
                        request.method,
                        self.url(request.path),
                        headers=fields,
                        data=data,
                        allow_redirects=False,
                    )
        except ConnectFailed as error:
            self._unreachable = str(error)
            raise
        except TimeoutError:
            raise TimedOut(timer, head_s or 0.0, self.name) from None
        self._unreachable = ""
        return HttpReply(response, timeouts, started, self.name)

    def _fields(self, request: UpstreamRequest) -> CIMultiDict[str]:
        options = self._options
        return CIMultiDict(rules.to_upstream(request.headers, options.auth, options.key, frozenset()))

    def _session(self, *, pooled: bool) -> aiohttp.ClientSession:
        session = self._pooled if pooled else self._unpooled
        if session is None:
            session = aiohttp.ClientSession(
                connector=_Connector(limit=0, keepalive_timeout=self._options.keepalive_s)
                if pooled
                else _Connector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._options.timeouts.connect_s),
                auto_decompress=False,
                skip_auto_headers=_NO_AUTO_HEADERS,
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
            )
            if pooled:
                self._pooled = session
            else:
                self._unpooled = session
        return session

    async def open_socket(self, request: UpstreamRequest, max_message_bytes: int) -> HttpSocket:
        options = self._options
        fields = self._fields(request)
        try:
            with _mapped(self.name):
                async with asyncio.timeout(options.timeouts.ttft_s):
                    socket = await self._session(pooled=True).ws_connect(
                        self.url(request.path),
                        headers=fields,
                        protocols=rules.subprotocols(request.headers, options.auth, options.key),
                        max_msg_size=max_message_bytes,
                    )
        except TimeoutError:
            raise TimedOut("ttft_s", options.timeouts.ttft_s or 0.0, self.name) from None
        return HttpSocket(socket, self.name)

    async def models(self, headers: Headers) -> Sequence[Mapping[str, Any]]:
        # Nothing of the client's but its credentials matters here, and an encoded list could not be read.
        own = [(n, v) for n, v in headers if n.lower() in rules.CREDENTIALS]
        reply = await self.send(UpstreamRequest("GET", "/v1/models", own))
        try:
            body = await read_all(reply, _MAX_MODEL_LIST_BYTES)
        finally:
            reply.close()
        if reply.status != 200:
            raise RefusedList(reply.status, reply.headers, body)
        try:
            entries = orjson.loads(body)["data"]
            return [
                entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)
            ]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise BadReply(f"backend {self.name!r} answered /v1/models with something else") from None

    async def readiness(self) -> Readiness:
        """Passive: an upstream counts as ready until the last try to connect to it failed."""
        return Readiness(not self._unreachable, self._unreachable)

    async def close(self) -> None:
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()


class HttpReply:
    """Implements `backends.base.Reply` over an aiohttp response."""

    __slots__ = (
        "_backend",
        "_first",
        "_handle",
        "_loop",
        "_response",
        "_started",
        "_timeouts",
        "_waiting_since",
    )

    def __init__(
        self, response: aiohttp.ClientResponse, timeouts: Timeouts, started: float, backend: str
    ) -> None:
        self._response = response
        self._timeouts = timeouts
        self._started = started
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._first = True
        self._waiting_since: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def reason(self) -> str:
        return self._response.reason or ""

    @property
    def headers(self) -> Headers:
        return rules.to_client(
            [
                (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
                for name, value in self._response.raw_headers
            ]
        )

    async def read_some(self) -> bytes:
        self._waiting_since = self._loop.time()
        if self._handle is None:
            self._arm()
        try:
            with _mapped(self._backend):
                data = await self._response.content.readany()
        finally:
            self._waiting_since = None
        if self._first:
            self._first = False
            self._disarm()  # idle_s may end earlier than ttft_s would have
        return data

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self._disarm()
        if self._response.content.at_eof() and self._response.content.exception() is None:
            self._response.release()
        else:
            self._response.close()

    def _deadline(self) -> tuple[float | None, str, float]:
        """When the present wait becomes too long, by which timer, and that timer's seconds."""
        limits = self._timeouts
        found: tuple[float | None, str, float] = (None, "", 0.0)
        if self._first and limits.ttft_s is not None:
            found = (self._started + limits.ttft_s, "ttft_s", limits.ttft_s)
        elif not self._first and limits.idle_s is not None and self._waiting_since is not None:
            found = (self._waiting_since + limits.idle_s, "idle_s", limits.idle_s)
        if limits.total_s is not None and (found[0] is None or self._started + limits.total_s < found[0]):
            found = (self._started + limits.total_s, "total_s", limits.total_s)
        return found

    def _arm(self) -> None:
        """One timer for the whole body: it looks again when it fires, so a read costs no timer."""
        at, _, _ = self._deadline()
        if at is None:
            # Nothing runs now; after the first byte, or while the client is slow, idle_s may.
            if self._timeouts.idle_s is None:
                return
            at = self._loop.time() + self._timeouts.idle_s
        self._handle = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        at, timer, limit_s = self._deadline()
        if self._waiting_since is not None and at is not None and self._loop.time() >= at:
            self._response.content.set_exception(TimedOut(timer, limit_s, self._backend))
            self._response.close()
            return
        self._handle = None
        if at is not None and self._loop.time() >= at:
            # The client is slow, not the upstream; look again when a read has waited its time.
            self._handle = self._loop.call_later(self._timeouts.idle_s or 1.0, self._look)
            return
        self._arm()


class HttpSocket:
    """Implements `backends.base.Socket` over aiohttp's WebSocket client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, backend: str) -> None:
        self._socket = socket
        self._backend = backend

    @property
    def protocol(self) -> str | None:
        return self._socket.protocol

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def receive(self) -> str | bytes | None:
        with _mapped(self._backend):
            message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return cast("str | bytes", message.data)
        return None

    async def send(self, message: str | bytes) -> None:
        with _mapped(self._backend):
            if isinstance(message, str):
                await self._socket.send_str(message)
            else:
                await self._socket.send_bytes(message)

    async def close(self, code: int = 1000, reason: bytes = b"") -> None:
        await self._socket.close(code=code, message=reason)


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    """A large body in writes that a slow upstream can hold back, so that it is not copied whole at once."""
    for start in range(0, len(body), _WRITE_BYTES):
        yield body[start : start + _WRITE_BYTES]


class _Upload:
    """The client's body on its way up. Remembers what went wrong on the client's side of it."""

    def __init__(self, source: AsyncIterable[bytes]) -> None:
        self._source = source
        self.error: Exception | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._source:
                yield chunk
        except Exception as error:
            # aiohttp would report it as a failure to send, and the upstream would be blamed.
            self.error = error
            raise

    def blame(self) -> Exception:
        if isinstance(
            self.error, aiohttp.ClientError | OSError | aiohttp.http_exceptions.HttpProcessingError
        ):
            return ClientBodyFailed("the client's upload broke off")
        assert self.error is not None
        return self.error


async def read_all(reply: HttpReply, max_bytes: int) -> bytes:
    """The whole body. Raises BadReply when it is longer than `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while part := await reply.read_some():
        size += len(part)
        if size > max_bytes:
            raise BadReply(f"the upstream's answer is longer than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _head_limit(timeouts: Timeouts) -> tuple[float | None, str]:
    """The wait for the head of a reply is a part of the wait for its first byte, and of the total."""
    if timeouts.total_s is not None and (timeouts.ttft_s is None or timeouts.total_s < timeouts.ttft_s):
        return timeouts.total_s, "total_s"
    return timeouts.ttft_s, "ttft_s"


@contextmanager
def _mapped(backend: str) -> Iterator[None]:
    """aiohttp's errors become ours here. Messages name the backend, never an address or a header."""
    try:
        yield
    except BackendError:
        raise
    except aiohttp.ConnectionTimeoutError:
        raise ConnectFailed(f"backend {backend!r} did not take the connection in time") from None
    except aiohttp.ClientConnectorError as error:
        cause = error.os_error
        raise ConnectFailed(f"backend {backend!r} cannot be reached: {cause.strerror or cause}") from None
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
