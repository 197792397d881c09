"""Which handler takes a request, and what every answer has in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from backends.base import Headers
from backends.errors import BackendError, ClientBodyFailed
from proxy import errors
from proxy.account import DRAINED
from proxy.dialects.paths import DIALECTS, spoken_at
from proxy.handlers import chat, explain, health, inference, models, passthrough
from proxy.handlers.call import Call
from proxy.handlers.incoming import (
    BodyStalled,
    canonical,
    peer,
    raw_headers,
    raw_path,
    request_id,
)
from proxy.handlers.outgoing import ClientSide
from proxy.handlers.tally import refusals, tallied
from proxy.relay import unanswered
from proxy.runtime import Live

log = logging.getLogger(__name__)

Handle = Callable[[Call], Awaitable[None]]

_PATHS: dict[tuple[str, str], Handle] = {
    **{("POST", path): chat.handle for path in DIALECTS},
    ("POST", "/v1/messages/count_tokens"): inference.handle,
    ("POST", "/v1/embeddings"): inference.handle,
    ("GET", "/v1/models"): models.handle,
    ("GET", "/healthz"): health.alive,
    ("HEAD", "/healthz"): health.alive,
    ("GET", "/readyz"): health.ready,
    ("HEAD", "/readyz"): health.ready,
    ("POST", "/chatfuse/explain"): explain.handle,
}


_HANDLED = frozenset(path for _, path in _PATHS if path.startswith("/v1/"))
_INFERENCE = frozenset(path for method, path in _PATHS if method == "POST" and path in _HANDLED)
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""They make nothing (RFC 9110 section 9.2.1): OpenAI lists stored completions on GET, browsers ask by OPTIONS."""


class MethodNotAllowed(errors.InvalidRequest):
    status = 405
    code = "method_not_allowed"


_TOLD_WITHIN_S = 2.0
"""A last event to a client that reads slowly is not waited for any longer."""


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
            await self._end_all()
            return False
        except asyncio.CancelledError:
            # A second signal: nobody waits any longer, but they are told.
            await self._end_all()
            raise
        return True

    async def _end_all(self) -> None:
        left = list(self._active)
        for task in left:
            task.cancel(msg=DRAINED)
        if left:
            await asyncio.wait(left, timeout=_TOLD_WITHIN_S)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = raw_headers(request)
        dialect = spoken_at(request.raw_path.partition("?")[0])
        client = ClientSide(request, dialect, closing=self._live.draining)
        fields: Headers = [("x-request-id", request_id(headers))]
        try:
            with self._live.use() as runtime:
                with refusals(runtime.metrics):
                    path = raw_path(request)
                client.dialect = spoken_at(path.partition("?")[0])
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
        except ClientBodyFailed as error:
            await _end(client, BodyStalled(str(error)), fields)
        except BackendError as error:
            await _end(client, unanswered(error), fields)
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (DRAINED,):
                raise
            await _end(client, errors.Draining("the proxy is restarting", retry_after_s=1), fields)
        except ConnectionError:
            raise
        except Exception:
            log.exception("unhandled error", extra={"request_id": fields[0][1]})
            await _end(client, errors.Internal(f"an error of the proxy (request {fields[0][1]})"), fields)
        assert client.response is not None
        return client.response


async def _end(client: ClientSide, error: errors.ProxyError, fields: Headers) -> None:
    """An error at any time: an answer, a last event, or, where a body has begun that is no stream, a cut."""
    if client.started and not client.is_stream:
        client.abort()
        return
    with suppress(ConnectionError):
        await client.refuse(error, fields)


def _find(method: str, path: str) -> Handle:
    handler = _PATHS.get((method, path))
    if handler is not None:
        return handler
    if not path.startswith("/v1/") and path != "/v1":
        return _wrong_method if any(path == handled for _, handled in _PATHS) else _unknown
    if method == "GET" and path.startswith("/v1/models/"):
        return models.one
    if path in _INFERENCE:
        return passthrough.handle if method in _SAFE_METHODS else _wrong_method
    if path not in _HANDLED and canonical(path) in _HANDLED:
        return _misspelt
    return passthrough.handle


async def _misspelt(call: Call) -> None:
    """An upstream that is lenient with paths would serve it, past the fuse, the cap and the allow lists."""
    with tallied(call.runtime.metrics):
        raise errors.NotFound(
            f"there is nothing at {call.route[:200]!r}: the path is {canonical(call.route)}"
        )


async def _wrong_method(call: Call) -> None:
    methods = [method for method, path in _PATHS if path == call.route]
    if call.route in _INFERENCE:
        methods += sorted(_SAFE_METHODS)  # they pass through: stored completions, preflights
    call.fields.append(("Allow", ", ".join(methods)))
    with tallied(call.runtime.metrics):
        raise MethodNotAllowed(f"{call.request.method[:20]} is not for {call.route}: use {methods[0]}")


async def _unknown(call: Call) -> None:
    raise errors.NotFound(
        f"there is nothing at {call.path.partition('?')[0][:200]!r}: API paths begin with /v1/"
    )
