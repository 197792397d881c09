"""WebSockets go through in both directions, and what an upstream says to a handshake is passed on."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http import WS_KEY

from tests.conftest import StartProxy
from tests.fakes.raw_client import RawAnswer, RawClient
from tests.fakes.upstream import Peer, Received, ScriptedUpstream, bytes_answer, json_answer
from tests.proxy_fixture import Proxy, openai_config

Connect = Callable[[int], Awaitable[RawClient]]
BOUND_S = 20.0
KEY = "openai-insecure-api-key.sk-browser"
UPGRADE = (
    "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


async def echo(request: web.Request) -> web.WebSocketResponse:
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    socket = web.WebSocketResponse(protocols=("realtime",) if "realtime" in offered else ())
    await socket.prepare(request)
    await socket.send_str(f"{request.headers.get('Authorization')}|{offered}|{request.path_qs}")
    async for message in socket:
        if message.data == "bye":
            await socket.close(code=4001, message=b"as asked")
        elif message.data == "break":
            assert request.transport is not None
            request.transport.abort()
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


@pytest.fixture
async def realtime() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def outcome(proxy: Proxy) -> str:
    """The outcome of the one request that there was, once it is told."""
    async with asyncio.timeout(BOUND_S):
        while True:
            metrics = await proxy.metrics()
            told = {k: v for k, v in metrics.items() if k.startswith("chatfuse_requests_total")}
            if told:
                assert list(told.values()) == [1]
                assert metrics.get('chatfuse_inflight{backend="up"}', 0) == 0
                return next(iter(told)).partition('outcome="')[2].rstrip('"}')
            await asyncio.sleep(0.02)


async def ask(client: RawClient, head: str, body: bytes = b"") -> RawAnswer:
    async with asyncio.timeout(BOUND_S):
        await client.send(f"{head}\r\n".encode() + body)
        return await client.answer()


# what passes


async def test_a_websocket_passes_in_both_directions_with_the_clients_key(
    start_proxy: StartProxy, realtime: str, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(realtime))
    url = f"{proxy.base_url}/realtime?model=gpt-realtime"
    headers = {"Authorization": "Bearer sk-1"}
    async with asyncio.timeout(BOUND_S):
        async with session.ws_connect(url, protocols=("realtime", KEY), headers=headers) as socket:
            assert socket.protocol == "realtime"
            assert await socket.receive_str() == f"Bearer sk-1|realtime,{KEY}|/v1/realtime?model=gpt-realtime"
            await socket.send_str("Grüße 🌍")
            assert await socket.receive_str() == "Grüße 🌍"
            await socket.send_bytes(bytes(range(256)) * 1000)
            assert await socket.receive_bytes() == bytes(range(256)) * 1000
            await socket.send_str("bye")
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 4001


async def test_a_websockets_key_is_replaced_by_ours_in_every_place(
    start_proxy: StartProxy, realtime: str, session: aiohttp.ClientSession
) -> None:
    text = '[server]\npassthrough_paths = ["GET /v1/realtime"]'
    backend = 'auth = "config"\napi_key = "env:UP"'
    proxy = await start_proxy(openai_config(realtime, text, backend=backend), {"UP": "sk-ours"})
    offered = ("realtime", KEY, "openai-organization.org-1", "openai-project.proj-1")
    async with asyncio.timeout(BOUND_S):
        async with session.ws_connect(f"{proxy.base_url}/realtime", protocols=offered) as socket:
            seen = await socket.receive_str()
    assert seen == "Bearer sk-ours|realtime|/v1/realtime"


async def test_a_key_among_the_subprotocols_is_not_logged(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async def takes_no_subprotocol(received: Received, peer: Peer) -> None:
        key = (received.header("sec-websocket-key") or "").encode()
        accept = base64.b64encode(hashlib.sha1(key + WS_KEY).digest())
        await peer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        await peer.wait_gone()

    upstream.then(takes_no_subprotocol)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        client = await raw(proxy.port)
        async with asyncio.timeout(BOUND_S):
            head = f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Protocol: {KEY}\r\n{UPGRADE}\r\n"
            await client.send(head.encode())
            status, headers = await client.head()
        client.reset()
        assert await outcome(proxy) == "client_gone"
    finally:
        logging.getLogger().removeHandler(handler)
    assert status == 101
    assert "sec-websocket-protocol" not in [name.lower() for name, _ in headers]
    assert upstream.received[0].header("sec-websocket-protocol") == KEY
    assert [line for line in lines if KEY in line] == []


# what an upstream refuses


async def test_an_upstreams_refusal_passes_as_it_is(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    error = {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}
    upstream.then(json_answer(error, 401, [("X-Request-Id", "upstream's"), ("X-More", "1")]))
    answer = await ask(await raw(proxy.port), f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{UPGRADE}")
    assert answer.status == 401
    assert json.loads(answer.body) == error
    assert answer.header("x-more") == "1"
    ids = [value for name, value in answer.headers if name.lower() == "x-request-id"]
    assert len(ids) == 1
    assert ids != ["upstream's"]
    assert await outcome(proxy) == "upstream_error"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_the_clients_to_follow(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect, status: int
) -> None:
    async with ScriptedUpstream() as elsewhere:
        location = f"{elsewhere.base_url}/realtime"
        upstream.then(bytes_answer(b"moved", "text/plain", status, [("Location", location)]))
        answer = await ask(
            await raw(proxy.port),
            f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nX-Api-Key: sk-1\r\n"
            f"Sec-WebSocket-Protocol: {KEY}\r\n{UPGRADE}",
        )
        assert (answer.status, answer.body, answer.header("location")) == (status, b"moved", location)
        assert elsewhere.received == []
    assert len(upstream.received) == 1


async def test_a_switch_that_is_none_is_a_502(proxy: Proxy, upstream: ScriptedUpstream, raw: Connect) -> None:
    async def wrong(_: Received, peer: Peer) -> None:
        await peer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\n"
        )

    upstream.then(wrong)
    answer = await ask(await raw(proxy.port), f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{UPGRADE}")
    assert answer.status == 502
    assert await outcome(proxy) == "upstream_error"


# what a client must send


@pytest.mark.parametrize(
    "upgrade",
    [
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        UPGRADE.replace("AAAAAA==", "A"),
        UPGRADE.replace("13", "12"),
        UPGRADE.replace("Sec-WebSocket-Version: 13\r\n", ""),
    ],
    ids=["no key", "short key", "version 12", "no version"],
)
async def test_half_a_handshake_is_refused_before_the_upstream_is_asked(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect, upgrade: str
) -> None:
    client = await raw(proxy.port)
    answer = await ask(client, f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{upgrade}")
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == "invalid_request"
    assert upstream.connections == 0
    assert await outcome(proxy) == "refused"
    assert (await ask(client, "GET /v1/things HTTP/1.1\r\nHost: x\r\n")).status == 200


async def test_only_a_get_is_a_handshake(proxy: Proxy, upstream: ScriptedUpstream, raw: Connect) -> None:
    head = f"POST /v1/things HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n{UPGRADE}"
    answer = await ask(await raw(proxy.port), head, b"a body"[:5])
    assert answer.status == 200
    (received,) = upstream.received
    assert (received.method, received.body) == ("POST", b"a bod")
    assert received.header("upgrade") is None


# what is told of it


async def test_an_open_websocket_is_in_flight_and_a_closed_one_is_ok(
    start_proxy: StartProxy, realtime: str, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(realtime))
    async with asyncio.timeout(BOUND_S):
        async with session.ws_connect(f"{proxy.base_url}/realtime") as socket:
            await socket.receive_str()
            assert (await proxy.metrics())['chatfuse_inflight{backend="up"}'] == 1
    assert await outcome(proxy) == "ok"


async def test_a_client_that_vanishes_is_told(start_proxy: StartProxy, realtime: str, raw: Connect) -> None:
    proxy = await start_proxy(openai_config(realtime))
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n".encode())
        assert (await client.head())[0] == 101
    client.reset()
    assert await outcome(proxy) == "client_gone"


async def test_an_upstream_that_vanishes_is_told(
    start_proxy: StartProxy, realtime: str, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(realtime))
    async with asyncio.timeout(BOUND_S):
        async with session.ws_connect(f"{proxy.base_url}/realtime") as socket:
            await socket.receive_str()
            await socket.send_str("break")
            await socket.receive()
    assert await outcome(proxy) == "interrupted"


async def test_a_handshake_without_a_known_key_is_told(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    text = '[[callers]]\nname = "a"\nkey = "env:A"'
    proxy = await start_proxy(openai_config(upstream.base_url, text, backend='auth = "none"'), {"A": "key-a"})
    answer = await ask(await raw(proxy.port), f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{UPGRADE}")
    assert answer.status == 401
    assert upstream.connections == 0
    assert await outcome(proxy) == "refused"
