"""The client's side of an answer over aiohttp, and the fields that say what was done."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiohttp import web
from multidict import CIMultiDict

from backends.base import Headers
from proxy.answer import error_headers
from proxy.dialects.prompt import Dialect
from proxy.errors import ProxyError
from proxy.exchange import Attempt, Exchange

SERVER = ("Server", "chatfuse")


class _Stream(web.StreamResponse):
    # Head and first chunk leave in one write.
    _send_headers_immediately = False


class ClientSide:
    """Implements `proxy.answer.Client`."""

    __slots__ = ("_request", "closing", "dialect", "response")

    def __init__(self, request: web.BaseRequest, dialect: Dialect, *, closing: bool = False) -> None:
        self._request = request
        self.dialect = dialect
        """What its errors are told in."""
        self.closing = closing
        self.response: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        return self.response is not None

    @property
    def is_stream(self) -> bool:
        """An event stream has begun: an error can still be said in it."""
        return self.response is not None and self.response.content_type == "text/event-stream"

    async def start(self, status: int, reason: str, headers: Headers) -> None:
        fields = CIMultiDict(headers)
        fields.setdefault(*SERVER)
        self.response = response = _Stream(status=status, reason=reason or None, headers=fields)
        if self.closing:
            response.force_close()
        await response.prepare(self._request)

    def flush_head(self) -> None:
        """Send the head now: the body lets itself be waited for."""
        self._request.writer.send_headers()

    async def write(self, data: bytes) -> None:
        assert self.response is not None
        await self.response.write(data)

    async def finish(self) -> None:
        assert self.response is not None
        await self.response.write_eof()

    async def answer(self, status: int, reason: str, headers: Headers, body: bytes) -> None:
        fields = CIMultiDict(headers)
        fields.popall("Content-Length", None)
        fields.setdefault(*SERVER)
        self.response = response = web.Response(
            status=status, reason=reason or None, headers=fields, body=body
        )
        if self.closing:
            response.force_close()
        await response.prepare(self._request)
        await response.write_eof()

    async def refuse(self, error: ProxyError, fields: Headers) -> None:
        """Our own error, whole, or as the last event of a stream that has begun."""
        body = self.dialect.error_body(error)
        if self.response is not None:
            await self.write(self.dialect.error_event(body))
            await self.finish()
            return
        await self.answer(error.http_status, "", [*error_headers(error), *fields], body)

    def abort(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()


def describe(exchange: Exchange, attempt: Attempt | None) -> Sequence[tuple[str, str]]:
    """`x-request-id`, `x-chatfuse-*` and `Server-Timing`, as far as they are known when the answer starts."""
    progress = exchange.progress
    fields = [("x-request-id", exchange.id)]
    if attempt is not None:
        fields.append(("x-chatfuse-model", attempt.model.name))
        if progress.backend:
            fields.append(("x-chatfuse-backend", progress.backend))
        if hasattr(attempt, "counts"):
            fields.append(("x-chatfuse-tokens-original", str(attempt.counts.tokens)))
        if hasattr(attempt, "shaped"):
            fields.append(("x-chatfuse-tokens-in", str(attempt.shaped.counts.tokens)))
            fields.append(("x-chatfuse-dropped-turns", str(attempt.shaped.dropped_turns)))
            fields.append(("x-chatfuse-summary", attempt.shaped.summary))
        if hasattr(attempt, "max_tokens") and attempt.max_tokens.value is not None:
            clamped = attempt.max_tokens.clamped
            fields.append(("x-chatfuse-max-tokens", f"{attempt.max_tokens.value}"))
            if clamped:
                fields.append(("x-chatfuse-max-tokens-clamped", clamped))
    timing = [f"{name};dur={seconds * 1000:.3f}" for name, seconds in exchange.timings.items()]
    if progress.sent_at:
        now = time.perf_counter()
        timing.append(f"upstream;dur={((progress.first_byte or now) - progress.sent_at) * 1000:.3f}")
    if timing:
        fields.append(("Server-Timing", ", ".join(timing)))
    return fields
