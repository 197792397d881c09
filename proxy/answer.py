"""The client's answer while it is made: what is committed, and what an error can still be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from backends.base import Headers, Reply
from proxy.errors import ProxyError

KEEPALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


class Client(Protocol):
    """The connection to a client; `proxy.handlers` has it over aiohttp."""

    @property
    def started(self) -> bool:
        """Status and headers are committed."""
        ...

    async def start(self, status: int, reason: str, headers: Headers) -> None: ...
    async def write(self, data: bytes) -> None: ...
    async def finish(self) -> None: ...
    async def answer(self, status: int, reason: str, headers: Headers, body: bytes) -> None:
        """Head and body in one write."""
        ...

    def abort(self) -> None:
        """Cut the connection, so that the client sees that its body is not whole."""
        ...


class Answer:
    """One answer in the making. `sent_event`: an event or a body byte is out, so nobody else may answer."""

    def __init__(self, client: Client, describe: Callable[[], Headers]) -> None:
        self._client = client
        self._describe = describe
        self._written_at = asyncio.get_running_loop().time()
        self.sent_event = False

    async def whole(self, reply: Reply, body: bytes) -> None:
        """An answer that is no stream."""
        if self._client.started:
            # A keep-alive comment committed a stream before this answer was known.
            await self._client.write(b"data: " + body.replace(b"\r", b"").replace(b"\n", b" ") + b"\n\n")
            await self._client.finish()
            return
        self.sent_event = True
        headers = [*reply.headers, *self._describe()]
        await self._client.answer(reply.status, reply.reason, headers, body)

    async def long(self, reply: Reply, begun: bytes) -> None:
        """The beginning of a body that is too long to be held back."""
        self.sent_event = True
        if not self._client.started:
            await self._client.start(reply.status, reply.reason, [*reply.headers, *self._describe()])
        await self._client.write(begun)

    async def events(self, reply: Reply, block: bytes) -> None:
        """Whole events of a stream; with the first of them there is no way back."""
        if not self._client.started:
            headers = [(n, v) for n, v in reply.headers if n.lower() != "content-length"]
            await self._client.start(reply.status, reply.reason, [*headers, *self._describe()])
        if block:
            self.sent_event = True
            await self.write(block)

    async def write(self, data: bytes) -> None:
        self._written_at = asyncio.get_running_loop().time()
        await self._client.write(data)

    async def finish(self) -> None:
        await self._client.finish()

    def abort(self) -> None:
        self._client.abort()

    async def fail(self, error: ProxyError) -> None:
        """An error of ours: a whole answer, or the last event of a stream that has begun."""
        if self._client.started:
            await self._client.write(b"data: " + error.body() + b"\n\n")
            await self._client.finish()
            return
        await self._client.answer(
            error.http_status, "", [*error_headers(error), *self._describe()], error.body()
        )

    async def comment_every(self, interval_s: float) -> None:
        """Runs beside the relay, which writes whole events only, so a comment never falls into one."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.0, self._written_at + interval_s - clock()))
            if clock() - self._written_at < interval_s:
                continue
            if not self._client.started:
                await self._client.start(200, "OK", [*_STREAM_HEADERS, *self._describe()])
            await self.write(KEEPALIVE)


def error_headers(error: ProxyError) -> list[tuple[str, str]]:
    headers = [("Content-Type", "application/json")]
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(error.retry_after_s)))
    return headers
