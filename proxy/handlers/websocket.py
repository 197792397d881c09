"""WebSockets, passed on message by message."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web

from backends.base import Backend, RefusedList, Socket, UpstreamRequest
from backends.errors import BackendError
from proxy.errors import InvalidRequest
from proxy.handlers.call import Call
from proxy.handlers.tally import Tally

# Its one warning, that no subprotocol is shared, quotes those that were offered: a key may be among them.
logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)


def check(request: web.BaseRequest) -> None:
    """Raises InvalidRequest for a handshake that could not be completed (RFC 6455 section 4.2.1)."""
    if not web.WebSocketResponse().can_prepare(request):
        raise InvalidRequest(
            "the WebSocket handshake needs Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key of 16 bytes"
        )


async def tunnel(call: Call, backend: Backend, tally: Tally) -> None:
    """Until either side closes. An upstream that refuses the handshake says so in its own words."""
    check(call.request)
    metrics = call.runtime.metrics
    metrics.inflight(backend.name, 1)
    tally.backend = backend.name
    request = UpstreamRequest("GET", call.path, call.headers)
    try:
        upstream = await backend.open_socket(request, call.runtime.config.server.max_body_bytes)
        await _join(call, upstream, tally)
    except RefusedList as refusal:
        tally.outcome = "upstream_error"
        headers = [*refusal.headers, *call.fields, ("x-chatfuse-backend", backend.name)]
        await call.client.answer(refusal.status, "", headers, refusal.body)
    finally:
        metrics.inflight(backend.name, -1)


async def _join(call: Call, upstream: Socket, tally: Tally) -> None:
    client = web.WebSocketResponse(
        protocols=(upstream.protocol,) if upstream.protocol else (),
        max_msg_size=call.runtime.config.server.max_body_bytes,
        autoclose=False,
    )
    client.headers["x-request-id"] = call.id
    call.client.response = client
    try:
        await client.prepare(call.request)
        down = asyncio.create_task(_to_client(upstream, client))
        directions = {asyncio.create_task(_to_upstream(client, upstream)), down}
        try:
            done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
        for task in done:
            task.result()
        if down in done and upstream.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            tally.outcome = "interrupted"
    except BackendError:
        tally.outcome = "interrupted"
        raise
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
