"""The client's answer while it is made: what is committed, and what an error can still be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from backends.base import Headers
from backends.sse import ends_event
from proxy.dialects.prompt import Dialect, event
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


class Head(Protocol):
    """What an upstream's answer begins with."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def headers(self) -> Headers: ...


@dataclass(frozen=True, slots=True)
class HeldReply:
    """An upstream's whole answer, kept for the case that nobody gives a better one."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class Answer:
    """One answer in the making.

    `sent_event`: an event or a byte of a body is out, so nobody else may answer. A keep-alive comment alone
    commits to an event stream, in which a whole answer or an error is then the one event.
    """

    def __init__(self, client: Client, dialect: Dialect, describe: Callable[[], Headers]) -> None:
        self._client = client
        self._dialect = dialect
        self._describe = describe
        self._written_at = asyncio.get_running_loop().time()
        self._comments_allowed = True
        self.sent_event = False

    async def whole(self, reply: Head, body: bytes) -> None:
        """An answer that is no stream."""
        self._comments_allowed = False
        self.sent_event = True
        if self._client.started:
            await self._only_event(self._dialect.error_event(body) if reply.status >= 400 else event(body))
            return
        await self._client.answer(reply.status, reply.reason, self._headers(reply), body)

    async def long(self, reply: Head, begun: bytes) -> None:
        """The beginning of a body that is too long to be held back."""
        self._comments_allowed = False
        self.sent_event = True
        if self._client.started:
            # It cannot be told in the event stream that a comment has begun.
            self._client.abort()
            raise ConnectionAbortedError("the answer is no stream, and a stream has begun")
        await self._client.start(reply.status, reply.reason, self._headers(reply))
        await self._client.write(begun)

    async def events(self, reply: Head, block: bytes) -> None:
        """A block of a stream; with the first of them there is no way back."""
        if not self._client.started:
            headers = [(n, v) for n, v in self._headers(reply) if n.lower() != "content-length"]
            await self._client.start(reply.status, reply.reason, headers)
        if block:
            self.sent_event = True
            # A very long event is given out in parts, and a comment must not fall between them.
            self._comments_allowed = ends_event(block)
            await self.write(block)

    async def write(self, data: bytes) -> None:
        self._written_at = asyncio.get_running_loop().time()
        await self._client.write(data)

    async def finish(self) -> None:
        self._comments_allowed = False
        await self._client.finish()

    def abort(self) -> None:
        self._comments_allowed = False
        self._client.abort()

    async def fail(self, error: ProxyError) -> None:
        """An error of ours: a whole answer, or the last event of a stream that has begun."""
        self._comments_allowed = False
        body = self._dialect.error_body(error)
        if self._client.started:
            await self._only_event(self._dialect.error_event(body))
            return
        headers = [*error_headers(error), *self._describe()]
        await self._client.answer(error.http_status, "", headers, body)

    @asynccontextmanager
    async def commented(self, every_s: float | None) -> AsyncIterator[None]:
        """`: keep-alive` while nothing else is sent, for balancers that cut idle streams."""
        if every_s is None:
            yield
            return
        task = asyncio.create_task(self._comment(every_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _comment(self, every_s: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.0, self._written_at + every_s - clock()) or every_s)
            if clock() - self._written_at < every_s or not self._comments_allowed:
                continue
            if not self._client.started:
                await self._client.start(200, "OK", [*_STREAM_HEADERS, *self._describe()])
            await self.write(KEEPALIVE)

    async def _only_event(self, event: bytes) -> None:
        await self._client.write(event)
        await self._client.finish()

    def _headers(self, reply: Head) -> list[tuple[str, str]]:
        return [*reply.headers, *self._describe()]


def error_headers(error: ProxyError) -> list[tuple[str, str]]:
    headers = [("Content-Type", "application/json")]
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(error.retry_after_s)))
    return headers
