"""What comes back from an upstream over HTTP: the body with its timers, and the WebSocket."""

from __future__ import annotations

import asyncio
from typing import cast

import aiohttp

from backends import headers as rules
from backends.base import Headers, Reply, Timeouts
from backends.errors import BadReply, TimedOut
from backends.http_errors import mapped


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
            with mapped(self._backend):
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
        due = at is not None and self._loop.time() >= at
        # total_s ends it also while a slow client is not read for; the other timers are about the upstream.
        if due and (self._waiting_since is not None or timer == "total_s"):
            self._response.content.set_exception(TimedOut(timer, limit_s, self._backend))
            self._response.close()
            return
        self._handle = None
        if due:
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
        with mapped(self._backend):
            message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return cast("str | bytes", message.data)
        return None

    async def send(self, message: str | bytes) -> None:
        with mapped(self._backend):
            if isinstance(message, str):
                await self._socket.send_str(message)
            else:
                await self._socket.send_bytes(message)

    async def close(self, code: int = 1000, reason: bytes = b"") -> None:
        await self._socket.close(code=code, message=reason)


async def take(reply: Reply, max_bytes: int) -> bytes:
    """The whole body of a reply that is done with then, whatever comes of it. Raises as `read_all`."""
    try:
        return await read_all(reply, max_bytes)
    finally:
        reply.close()


async def read_all(reply: Reply, max_bytes: int) -> bytes:
    """The whole body. Raises BadReply when it is longer than `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while part := await reply.read_some():
        size += len(part)
        if size > max_bytes:
            raise BadReply(f"the upstream's answer is longer than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)
