"""Which handler takes a request, and what every answer has in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from backends.base import Headers
from backends.errors import BackendError
from proxy import errors
from proxy.handlers import chat, explain, health, inference, models, passthrough
from proxy.handlers.call import Call
from proxy.handlers.incoming import peer, raw_headers, raw_path, request_id
from proxy.handlers.outgoing import ClientSide
from proxy.relay import unanswered
from proxy.runtime import Live

log = logging.getLogger(__name__)

Handle = Callable[[Call], Awaitable[None]]

_PATHS: dict[tuple[str, str], Handle] = {
    ("POST", "/v1/chat/completions"): chat.handle,
    ("POST", "/v1/completions"): inference.handle,
    ("POST", "/v1/embeddings"): inference.handle,
    ("POST", "/v1/responses"): inference.handle,
    ("POST", "/v1/messages"): inference.handle,
    ("GET", "/v1/models"): models.handle,
    ("GET", "/healthz"): health.alive,
    ("HEAD", "/healthz"): health.alive,
    ("GET", "/readyz"): health.ready,
    ("HEAD", "/readyz"): health.ready,
    ("POST", "/chatfuse/explain"): explain.handle,
}


class Dispatch:
    """The server's one handler. Knows which requests are in progress, so that a drain can wait for them."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._active: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._active.add(task)
        self._idle.clear()
        try:
            return await self._serve(request)
        finally:
            self._active.discard(task)
            if not self._active:
                self._idle.set()

    async def drained(self, limit_s: float) -> bool:
        """Wait until no request is in progress; after `limit_s` those that are left are ended with an error."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            left = list(self._active)
            for task in left:
                task.cancel(msg=_DRAINED)
            if left:
                await asyncio.wait(left, timeout=5.0)
            return False
        return True

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = raw_headers(request)
        client = ClientSide(request, closing=self._live.draining)
        fields: Headers = [("x-request-id", request_id(headers))]
        try:
            with self._live.use() as runtime:
                path = raw_path(request)
                call = Call(
                    request=request,
                    client=client,
                    live=self._live,
                    runtime=runtime,
                    id=fields[0][1],
                    path=path,
                    headers=headers,
                    peer=peer(request, headers, runtime.config.server.trusted_proxies),
                    arrived=time.perf_counter(),
                )
                fields = call.fields
                await _find(request.method, path.partition("?")[0])(call)
        except errors.ProxyError as error:
            await client.refuse(error, fields)
        except BackendError as error:
            await _end(client, unanswered(error), fields)
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_DRAINED,):
                raise
            await _end(client, errors.Draining("the proxy is restarting", retry_after_s=1), fields)
        except ConnectionError:
            raise
        except Exception:
            log.exception("unhandled error", extra={"request_id": fields[0][1]})
            await _end(client, errors.Internal(f"an error of the proxy (request {fields[0][1]})"), fields)
        assert client.response is not None
        return client.response


_DRAINED = "drained"


async def _end(client: ClientSide, error: errors.ProxyError, fields: Headers) -> None:
    """An error at any time: an answer, a last event, or, where a body has begun that is no stream, a cut."""
    if client.started and not client.is_stream:
        client.abort()
        return
    await client.refuse(error, fields)


def _find(method: str, path: str) -> Handle:
    handler = _PATHS.get((method, path))
    if handler is not None:
        return handler
    if path.startswith("/v1/") or path == "/v1":
        return passthrough.handle
    return _unknown


async def _unknown(call: Call) -> None:
    raise errors.NotFound(
        f"there is nothing at {call.path.partition('?')[0][:200]!r}: API paths begin with /v1/"
    )
