"""Every other path under `/v1/`: bytes in, bytes out, under the rules that keep our key ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from backends.base import Backend, Reply, Socket, UpstreamRequest
from backends.errors import BackendError
from proxy.errors import NotAllowed, NotFound, TooLarge
from proxy.handlers.call import Call
from proxy.handlers.incoming import invite


async def handle(call: Call) -> None:
    runtime, request = call.runtime, call.request
    runtime.keys.identify(call.headers)
    backend = runtime.passthrough.backend
    if backend is None:
        raise NotFound(
            f"there is nothing at {call.route[:200]!r}, and no passthrough_backend that might know it"
        )
    if not runtime.passthrough.allows(request.method, call.route):
        raise NotAllowed(
            f"{request.method} {call.route[:200]} is not in server.passthrough_paths: the key would be ours",
            code="path_not_allowed",
        )
    if is_websocket(request):
        await tunnel(call, backend)
        return
    body = _upload(request, runtime.config.server.max_body_bytes) if request.can_read_body else None
    await relay(call, backend, UpstreamRequest(request.method, call.path, call.headers, body))


async def relay(call: Call, backend: Backend, request: UpstreamRequest) -> None:
    """Send and copy the answer as it comes."""
    metrics = call.runtime.metrics
    metrics.inflight(backend.name, 1)
    outcome = "failed"
    try:
        reply = await backend.send(request)
        try:
            await _copy(call, backend, reply)
            outcome = "ok" if reply.status < 400 else "upstream_error"
        finally:
            reply.close()
    except BackendError:
        outcome = "upstream_error"
        raise
    except (asyncio.CancelledError, ConnectionError):
        outcome = "client_gone"
        raise
    finally:
        metrics.inflight(backend.name, -1)
        metrics.request("", backend.name, outcome)


async def _copy(call: Call, backend: Backend, reply: Reply) -> None:
    client = call.client
    own = [*call.fields, ("x-chatfuse-backend", backend.name)]
    headers = [*((n, v) for n, v in reply.headers if n.lower() != "x-request-id"), *own]
    await client.start(reply.status, reply.reason, headers)
    if call.request.method != "HEAD":
        while data := await reply.read_some():
            await client.write(data)
    await client.finish()


async def _upload(request: web.BaseRequest, max_bytes: int) -> AsyncIterator[bytes]:
    """The client's body as it comes; never held whole."""
    await invite(request)
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"the body has more than {max_bytes} bytes, the limit")
        yield chunk


def is_websocket(request: web.BaseRequest) -> bool:
    return (
        request.headers.get("Upgrade", "").lower() == "websocket"
        and "upgrade" in request.headers.get("Connection", "").lower()
    )


async def tunnel(call: Call, backend: Backend) -> None:
    """A WebSocket, message by message in both directions, until either side closes."""
    limit = call.runtime.config.server.max_body_bytes
    request = UpstreamRequest("GET", call.path, call.headers, upgrade=True)
    upstream = await backend.open_socket(request, limit)
    client = web.WebSocketResponse(
        protocols=(upstream.protocol,) if upstream.protocol else (), max_msg_size=limit, autoclose=False
    )
    client.headers["x-request-id"] = call.id
    call.client.response = client
    try:
        await client.prepare(call.request)
        directions = {
            asyncio.create_task(_to_upstream(client, upstream)),
            asyncio.create_task(_to_client(upstream, client)),
        }
        try:
            done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
        for task in done:
            task.result()
    finally:
        await upstream.close(_sendable(client.close_code))
        await client.close(code=_sendable(upstream.close_code))


async def _to_upstream(client: web.WebSocketResponse, upstream: Socket) -> None:
    async for message in client:
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            await upstream.send(message.data)
        else:
            return


async def _to_client(upstream: Socket, client: web.WebSocketResponse) -> None:
    while (message := await upstream.receive()) is not None:
        if isinstance(message, str):
            await client.send_str(message)
        else:
            await client.send_bytes(message)


def _sendable(code: int | None) -> int:
    """A close code that may stand in a frame: 1005, 1006 and 1015 never do (RFC 6455 section 7.4.1)."""
    return code if code is not None and code not in (1005, 1006, 1015) else 1000
