"""Every other path under `/v1/`: bytes in, bytes out, under the rules that keep our key ours."""

from __future__ import annotations

import asyncio
import logging

from backends.base import Backend, Headers, Reply, UpstreamRequest
from backends.errors import BackendError
from backends.sse import ends_event
from proxy.errors import NotAllowed, NotFound
from proxy.handlers.call import Call
from proxy.handlers.incoming import body_parts, is_websocket
from proxy.handlers.outgoing import ClientSide
from proxy.handlers.tally import Tally, tallied
from proxy.handlers.websocket import tunnel
from proxy.relay import is_event_stream

log = logging.getLogger(__name__)


async def handle(call: Call) -> None:
    with tallied(call.runtime.metrics) as tally:
        await _handle(call, tally)


async def _handle(call: Call, tally: Tally) -> None:
    runtime, request = call.runtime, call.request
    caller, _ = runtime.keys.identify(call.headers)
    backend = runtime.passthrough.backend
    if backend is None:
        raise NotFound(
            f"there is nothing at {call.route[:200]!r}, and no passthrough_backend that might know it"
        )
    if not runtime.passthrough.allows(request.method, call.route, caller):
        raise NotAllowed(
            f"{request.method} {call.route[:200]} is not in server.passthrough_paths, "
            "which holds where the upstream is reached by our leave",
            code="path_not_allowed",
        )
    if is_websocket(request):
        await tunnel(call, backend, tally)
        return
    body = None
    if request.can_read_body:
        server = runtime.config.server
        body = body_parts(request, server.max_body_bytes, server.body_idle_s)
    await relay(call, backend, UpstreamRequest(request.method, call.path, call.headers, body), tally)


async def relay(call: Call, backend: Backend, request: UpstreamRequest, tally: Tally) -> None:
    """Send, and copy the answer as it comes."""
    metrics = call.runtime.metrics
    metrics.inflight(backend.name, 1)
    tally.backend = backend.name
    try:
        reply = await backend.send(request)
        try:
            await _copy(call, backend, reply, tally)
            tally.outcome = "ok" if reply.status < 400 else "upstream_error"
        finally:
            reply.close()
    finally:
        metrics.inflight(backend.name, -1)


async def _copy(call: Call, backend: Backend, reply: Reply, tally: Tally) -> None:
    client = call.client
    headers = [*reply.headers, *call.fields, ("x-chatfuse-backend", backend.name)]
    if call.request.method == "HEAD":
        await client.start(reply.status, reply.reason, headers)
        await client.finish()
        return
    end = b""
    try:
        data = await _begin(client, reply, headers)
        while data:
            await client.write(data)
            end = (end + data if len(data) < 4 else data)[-4:]
            data = await reply.read_some()
        await client.finish()
    except BaseException as error:
        if client.started:
            if isinstance(error, BackendError):
                tally.outcome = "interrupted"
                log.warning("%s in the middle of its answer", error, extra={"request_id": call.id})
            if not (is_event_stream(reply) and ends_event(end)):
                # What went wrong cannot be said in the midst of an event, or of bytes that are none.
                client.abort()
        raise


async def _begin(client: ClientSide, reply: Reply, headers: Headers) -> bytes:
    """Start the answer, and give the body's first bytes.

    Head and body go out in one write where both are there; else the head goes first, since to an EventSource
    its arrival is an event of its own.
    """
    first = asyncio.ensure_future(reply.read_some())
    try:
        await asyncio.sleep(0)
        if first.done():
            data = first.result()
            await client.start(reply.status, reply.reason, headers)
            return data
        await client.start(reply.status, reply.reason, headers)
        client.flush_head()
        return await first
    finally:
        first.cancel()
