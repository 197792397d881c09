"""Streams leave byte for byte as they came, whatever the cuts; only our own usage event is taken out."""

from __future__ import annotations

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import (
    DONE,
    USAGE_EVENT,
    Peer,
    Received,
    ScriptedUpstream,
    delta,
    paused_answer,
    sse_answer,
)
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

STREAM = (
    b": a comment\n\n"
    + delta("Grüße 🌍 漢字")
    + b'event: odd\nid: 7\ndata: {"unknown":true}\n\n'
    + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
)


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


async def post(proxy: Proxy, body: bytes) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=body) as answer,
    ):
        return answer.status, await answer.read()


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_a_stream_keeps_its_bytes_whatever_the_cuts(
    proxy: Proxy, upstream: ScriptedUpstream, ending: bytes, size: int
) -> None:
    whole = (STREAM + DONE).replace(b"\n", ending)
    upstream.then(sse_answer([whole[i : i + size] for i in range(0, len(whole), size)]))
    assert await post(proxy, chat(stream=True)) == (200, whole)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("size", [1, 5, 10_000])
async def test_the_usage_event_that_only_we_asked_for_is_taken_out(
    proxy: Proxy, upstream: ScriptedUpstream, ending: bytes, size: int
) -> None:
    sent = (STREAM + USAGE_EVENT + DONE).replace(b"\n", ending)
    expected = (STREAM + DONE).replace(b"\n", ending)
    upstream.then(sse_answer([sent[i : i + size] for i in range(0, len(sent), size)]))
    assert await post(proxy, chat(stream=True)) == (200, expected)
    assert upstream.received[0].json["stream_options"] == {"include_usage": True}
    assert (await proxy.metrics())['chatfuse_tokens_total{kind="completion",model="gpt-4o"}'] == 2


async def test_a_client_that_asked_for_usage_gets_it_and_its_body_goes_on_unchanged(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    upstream.then(sse_answer([STREAM, USAGE_EVENT, DONE]))
    assert await post(proxy, body) == (200, STREAM + USAGE_EVENT + DONE)
    assert upstream.received[0].body == body


async def test_usage_beside_choices_is_noted_and_stays(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    last = b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    upstream.then(sse_answer([delta("x"), last, DONE]))
    assert await post(proxy, chat(stream=True)) == (200, delta("x") + last + DONE)
    assert (await proxy.metrics())['chatfuse_tokens_total{kind="completion",model="gpt-4o"}'] == 4


async def test_other_stream_options_of_the_client_stay(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = chat(stream=True, stream_options={"include_obfuscation": False})
    upstream.then(sse_answer([DONE]))
    await post(proxy, body)
    assert upstream.received[0].json["stream_options"] == {
        "include_obfuscation": False,
        "include_usage": True,
    }


async def test_a_backend_that_refuses_stream_options_is_asked_again_without_and_never_again_with(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    async def refuse(_: Received, peer: Peer) -> None:
        text = b'{"error":{"message":"Unknown field: stream_options","code":400}}'
        await peer.write(
            b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(text), text)
        )

    upstream.then(refuse, sse_answer([delta("x"), DONE]), sse_answer([delta("y"), DONE]))
    body = chat(stream=True)
    assert await post(proxy, body) == (200, delta("x") + DONE)
    assert upstream.received[1].body == body
    assert await post(proxy, body) == (200, delta("y") + DONE)
    assert upstream.received[2].body == body


async def test_usage_is_not_asked_for_where_the_config_says_off(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, backend='ask_usage = "off"'))
    body = chat(stream=True)
    upstream.then(sse_answer([delta("x"), USAGE_EVENT, DONE]))
    assert await post(proxy, body) == (200, delta("x") + USAGE_EVENT + DONE)
    assert upstream.received[0].body == body


async def test_an_event_longer_than_what_is_held_back_passes(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    long = b'data: {"choices":[{"delta":{"content":"' + b"x" * 1_000_000 + b'"}}]}\n\n'
    upstream.then(sse_answer([long[i : i + 50_000] for i in range(0, len(long), 50_000)] + [DONE]))
    assert await post(proxy, chat(stream=True)) == (200, long + DONE)


async def test_a_stream_without_a_last_empty_line_is_given_whole(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.then(sse_answer([delta("x"), b"data: [DONE]"]))
    assert await post(proxy, chat(stream=True)) == (200, delta("x") + b"data: [DONE]")


async def test_an_empty_stream_is_an_empty_stream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.then(sse_answer([]))
    assert await post(proxy, chat(stream=True)) == (200, b"")


async def test_each_chunk_reaches_the_client_before_the_next_one_is_sent(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    import asyncio

    go = asyncio.Event()

    upstream.then(paused_answer(go, [delta("first")], [DONE]))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        async with asyncio.timeout(10):
            assert await answer.content.readany() == delta("first")
        go.set()
        assert await answer.read() == DONE
