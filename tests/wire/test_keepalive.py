"""Keep-alive comments, and the ids of requests."""

from __future__ import annotations

import asyncio

from tests.conftest import StartProxy
from tests.fakes.upstream import (
    DONE,
    SSE_HEAD,
    Peer,
    Received,
    ScriptedUpstream,
    delta,
    sse_answer,
)
from tests.proxy_fixture import openai_config
from tests.wire.requests import chat
from tests.wire.test_relay_faults import BOUND_S, TWO_BACKENDS, Connect, post


async def test_keep_alive_comments_stand_between_whole_events(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    go = asyncio.Event()

    async def slow(_: Received, peer: Peer) -> None:
        await go.wait()
        await peer.write(SSE_HEAD)
        await peer.chunk(delta("one"))
        await peer.chunk(DONE)
        await peer.write(b"0\r\n\r\n")

    upstream.then(slow)
    proxy = await start_proxy(openai_config(upstream.base_url, "[server]\nkeepalive_comment_s = 0.05"))
    client = await raw(proxy.port)
    await client.post("/v1/chat/completions", chat(stream=True))
    async with asyncio.timeout(BOUND_S):
        status, headers = await client.head()
        assert status == 200
        assert dict(headers)["Content-Type"].startswith("text/event-stream")
        assert await client.chunk() == b": keep-alive\n\n"
        go.set()
        rest = b""
        while part := await client.chunk():
            rest += part
    assert rest.replace(b": keep-alive\n\n", b"") == delta("one") + DONE


async def test_after_a_comment_an_error_is_an_event_and_failover_is_still_possible(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async with ScriptedUpstream(sse_answer([delta("b"), DONE])) as second:
        waiting = asyncio.Event()

        async def late_reset(_: Received, peer: Peer) -> None:
            await waiting.wait()
            peer.reset()

        upstream.default = late_reset
        none = 'auth = "none"'
        text = TWO_BACKENDS.format(a=upstream.base_url, b=second.base_url, options=none, options_b=none)
        proxy = await start_proxy("[server]\nkeepalive_comment_s = 0.05\n" + text)
        client = await raw(proxy.port)
        await client.post("/v1/chat/completions", chat(stream=True))
        async with asyncio.timeout(BOUND_S):
            await client.head()
            assert await client.chunk() == b": keep-alive\n\n"
            waiting.set()
            rest = b""
            while part := await client.chunk():
                rest += part
        assert rest.replace(b": keep-alive\n\n", b"") == delta("b") + DONE


async def test_request_ids_are_the_clients_own_or_new_ones(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    _, headers, _ = await post(proxy, chat(), **{"x-request-id": "abc-1.2"})
    assert headers["x-request-id"] == "abc-1.2"
    _, first, _ = await post(proxy, chat())
    _, second, _ = await post(proxy, chat())
    assert first["x-request-id"] != second["x-request-id"]
