"""The only aiohttp client code: one connection pool for each upstream, timers, and the mapping of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import aiohttp
import orjson
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from backends import headers as rules
from backends.base import Auth, Headers, Oracle, Readiness, RefusedList, Timeouts, UpstreamRequest
from backends.errors import BadReply, ClientBodyFailed, ConnectFailed, Interrupted, TimedOut
from backends.http_errors import mapped
from backends.http_reply import HttpReply, HttpSocket, take
from backends.kv_state import KvState

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

_NO_AUTO_HEADERS = frozenset((hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE))
_MAX_HEADER_BYTES = 64 * 1024
KEEPALIVE_S = 4.0
"""Idle connections are dropped after this. Below uvicorn's 5 s, so that the upstream is not first."""
_WRITE_BYTES = 1024 * 1024
_MAX_MODEL_LIST_BYTES = 16 * 1024 * 1024
_MAX_REFUSAL_BYTES = 1024 * 1024
RESEND_WITHIN_S = 2.0
"""A kept connection that was about to be closed fails at once. One that breaks later may have cost an answer."""

_connection_is_new: ContextVar[list[bool] | None] = ContextVar("connection_is_new", default=None)


class _Tells(aiohttp.BaseConnector):
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


class _TcpConnector(_Tells, aiohttp.TCPConnector):
    pass


class _UnixConnector(_Tells, aiohttp.UnixConnector):
    pass


class _HandshakeRefused(Exception):
    """The upstream's answer to a WebSocket's handshake is no 101."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__(f"status {response.status}")
        self.response = response


async def _handshakes_end_here(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """`ws_connect` would follow a redirect, with most of the client's keys, and lose the body of a refusal."""
    response = await send(request)
    if hdrs.SEC_WEBSOCKET_KEY in request.headers and response.status != 101:
        raise _HandshakeRefused(response)
    return response


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
    """How long an idle connection is kept; 0: each request has a connection of its own."""
    socket_path: str | None = None
    """A Unix socket to connect to instead of the address; `base_url` then only names the host."""


class HttpBackend:
    """An upstream that is spoken to over HTTP/1.1. Implements `backends.base.Backend`."""

    reply_class: ClassVar[type[HttpReply]] = HttpReply

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._root = options.base_url.rstrip("/")
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None
        self._closed = False
        self._usage_refused = False
        self._unreachable = ""
        self._lost = asyncio.Event()

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

    def oracle(self, model: str) -> Oracle | None:
        return None

    @property
    def tells(self) -> bool:
        return False

    async def learn(self) -> bool:
        return False

    async def lost(self, within_s: float) -> None:
        self._lost.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._lost.wait()

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
        clock = asyncio.get_running_loop().time
        sent_at = clock()
        try:
            return await self._attempt(self._session(pooled=True), request, fields, data())
        except TimedOut:
            if upload is not None and upload.waits:
                raise ClientBodyFailed("the client's upload came too slowly") from None
            raise
        except Interrupted:
            if upload is not None and upload.error is not None:
                raise upload.blame() from None
            if is_new[0] or upload is not None or clock() - sent_at > RESEND_WITHIN_S:
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
            with mapped(self.name):
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
            self._lost.set()
            raise
        except TimeoutError:
            raise TimedOut(timer, head_s or 0.0, self.name) from None
        self._unreachable = ""
        if response.status == 101:
            response.close()
            raise BadReply(f"backend {self.name!r} switched protocols unasked")
        return self.reply_class(response, timeouts, started, self.name)

    def _fields(self, request: UpstreamRequest) -> CIMultiDict[str]:
        options = self._options
        return CIMultiDict(rules.to_upstream(request.headers, options.auth, options.key, frozenset()))

    def _session(self, *, pooled: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectFailed(f"backend {self.name!r} is closed here")
        session = self._pooled if pooled else self._unpooled
        if session is None:
            session = aiohttp.ClientSession(
                connector=self._connector(pooled=pooled),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._options.timeouts.connect_s),
                auto_decompress=False,
                skip_auto_headers=_NO_AUTO_HEADERS,
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
                middlewares=() if pooled else (_handshakes_end_here,),
            )
            # aiohttp would send GET, PUT and DELETE again by itself, however late they fail.
            session._retry_connection = False
            if pooled:
                self._pooled = session
            else:
                self._unpooled = session
        return session

    def _connector(self, *, pooled: bool) -> aiohttp.BaseConnector:
        path, keepalive_s = self._options.socket_path, self._options.keepalive_s
        kept: dict[str, Any] = (
            {"keepalive_timeout": keepalive_s} if pooled and keepalive_s > 0 else {"force_close": True}
        )
        if path is not None:
            return _UnixConnector(path, limit=0, **kept)
        return _TcpConnector(limit=0, **kept)

    async def open_socket(self, request: UpstreamRequest, max_message_bytes: int) -> HttpSocket:
        """Raises RefusedList with the upstream's own answer when it would not switch to WebSocket."""
        options = self._options
        fields = self._fields(request)
        started = asyncio.get_running_loop().time()
        try:
            with mapped(self.name):
                async with asyncio.timeout(options.timeouts.ttft_s):
                    socket = await self._session(pooled=False).ws_connect(
                        self.url(request.path),
                        headers=fields,
                        protocols=rules.subprotocols(request.headers, options.auth, options.key),
                        max_msg_size=max_message_bytes,
                    )
        except TimeoutError:
            raise TimedOut("ttft_s", options.timeouts.ttft_s or 0.0, self.name) from None
        except _HandshakeRefused as refused:
            reply = HttpReply(refused.response, options.timeouts, started, self.name)
            body = await take(reply, _MAX_REFUSAL_BYTES)
            raise RefusedList(reply.status, reply.headers, body) from None
        return HttpSocket(socket, self.name)

    async def models(self, headers: Headers) -> Sequence[Mapping[str, Any]]:
        # Nothing of the client's but its credentials matters here, and an encoded list could not be read.
        return await self.list_models([(n, v) for n, v in headers if n.lower() in rules.CREDENTIALS])

    async def list_models(self, headers: Headers) -> Sequence[Mapping[str, Any]]:
        """`models`, with just these fields."""
        reply = await self.send(UpstreamRequest("GET", "/v1/models", headers))
        body = await take(reply, _MAX_MODEL_LIST_BYTES)
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
        """Passive while all is well. After a failed connect it is tried again, by a bare TCP connect: behind a
        balancer that sends nothing to who is not ready, no request would ever find out that it is back."""
        if self._unreachable and await self._can_connect():
            self._unreachable = ""
        return Readiness(not self._unreachable, self._unreachable)

    async def sample(self) -> KvState | None:
        return None

    async def _can_connect(self) -> bool:
        url, path = URL(self._root), self._options.socket_path
        try:
            async with asyncio.timeout(min(1.0, self._options.timeouts.connect_s)):
                _, writer = (
                    await asyncio.open_connection(url.host, url.port)
                    if path is None
                    else await asyncio.open_unix_connection(path)
                )
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def close(self) -> None:
        self._closed = True
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    """A large body in writes that a slow upstream can hold back, so that it is not copied whole at once."""
    for start in range(0, len(body), _WRITE_BYTES):
        yield body[start : start + _WRITE_BYTES]


class _Upload:
    """The client's body on its way up. Remembers what went wrong on the client's side of it."""

    def __init__(self, source: AsyncIterable[bytes]) -> None:
        self._source = source
        self.error: Exception | None = None
        self.waits = False
        """For the client's next bytes, and not for the upstream to take the last ones."""

    async def chunks(self) -> AsyncIterator[bytes]:
        self.waits = True
        try:
            async for chunk in self._source:
                self.waits = False
                yield chunk
                self.waits = True
            self.waits = False
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


def _head_limit(timeouts: Timeouts) -> tuple[float | None, str]:
    """The wait for the head of a reply is a part of the wait for its first byte, and of the total."""
    if timeouts.total_s is not None and (timeouts.ttft_s is None or timeouts.total_s < timeouts.ttft_s):
        return timeouts.total_s, "total_s"
    return timeouts.ttft_s, "ttft_s"
