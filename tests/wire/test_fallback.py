"""Which model answers, and what the client is told when none does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import (
    DONE,
    SSE_HEAD,
    Peer,
    Received,
    ScriptedUpstream,
    completion,
    delta,
    json_answer,
    paused_answer,
    sse_answer,
)
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat, conversation

BOUND_S = 30.0
Connect = Callable[[int], Awaitable[RawClient]]

CONFIG = """
[admin]
port = 0
[[backends]]
name = "a"
kind = "openai"
base_url = "{a}"
auth = "{auth}"
[[backends]]
name = "b"
kind = "openai"
base_url = "{b}"
auth = "{auth}"
[[models]]
name = "small"
targets = [{{ backend = "a", model = "gpt-4o" }}]
window = {small}
context = {{ strategy = "trim" }}
fallbacks = ["large"]
[[models]]
name = "large"
targets = [{{ backend = "b", model = "gpt-4o" }}]
window = {large}
context = {{ strategy = "trim" }}
"""


def config(
    a: ScriptedUpstream, b: ScriptedUpstream, *, small: int = 1000, large: int = 5000, auth: str = "none"
) -> str:
    return CONFIG.format(a=a.base_url, b=b.base_url, small=small, large=large, auth=auth)


async def post(
    proxy: Proxy, body: bytes | dict[str, Any], **headers: str
) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=data, headers=headers) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


async def test_what_fits_into_no_cut_goes_to_the_model_with_the_larger_window(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        proxy = await start_proxy(config(upstream, second))
        status, headers, _ = await post(proxy, chat("word " * 2000, model="small"))
        assert status == 200
        assert headers["x-chatfuse-model"] == "large"
        assert upstream.received == []


async def test_also_where_nothing_is_trimmed_and_the_window_is_known(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        text = config(upstream, second).replace('"trim"', '"keep"')
        proxy = await start_proxy(text)
        status, headers, _ = await post(proxy, chat("word " * 2000, model="small"))
        assert (status, headers["x-chatfuse-model"]) == (200, "large")
        assert upstream.received == []
        # One that has nowhere else to go is the upstream's to judge.
        status, headers, _ = await post(proxy, chat("word " * 9000, model="large"))
        assert (status, headers["x-chatfuse-model"]) == (200, "large")
        status, _, body = await post(proxy, chat("word " * 9000, model="small"))
        assert (status, b"1000 tokens" in body) == (400, True)


async def test_what_fits_nowhere_is_the_overflow_of_the_model_that_was_asked_for(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        proxy = await start_proxy(config(upstream, second))
        status, _, body = await post(proxy, chat("word " * 9000, model="small"))
        assert status == 400
        assert b"750 tokens" in body  # the budget of small, not of large


async def test_each_candidate_is_cut_for_its_own_window(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        upstream.default = json_answer({}, 503)
        proxy = await start_proxy(config(upstream, second))
        await post(proxy, conversation(60, model="small"))
        lengths = [len(server.received[0].json["messages"]) for server in (upstream, second)]
        assert lengths[0] < lengths[1]


async def test_a_fallback_that_cannot_fit_does_not_hide_what_the_first_one_said(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        upstream.default = json_answer({"error": {"message": "busy"}}, 503, [("Retry-After", "7")])
        proxy = await start_proxy(config(upstream, second, small=5000, large=300))
        status, headers, body = await post(proxy, chat("word " * 1000, model="small"))
        assert (status, body) == (503, b'{"error": {"message": "busy"}}')
        assert headers["retry-after"] == "7"
        assert second.received == []


async def test_an_upstreams_429_passes_with_its_retry_after_when_nobody_else_may_answer(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        upstream.default = json_answer({"error": {"message": "slow down"}}, 429, [("Retry-After", "3")])
        proxy = await start_proxy(config(upstream, second, auth="client"))
        status, headers, body = await post(proxy, chat(model="small"), Authorization="Bearer sk-client")
        assert (status, body) == (429, b'{"error": {"message": "slow down"}}')
        assert headers["retry-after"] == "3"
        assert second.received == []


async def test_usage_is_still_asked_for_after_one_client_sent_a_bad_stream_option(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    refused = json_answer({"error": {"message": "stream_options.bogus is unknown"}}, 400)
    upstream.then(refused, refused, sse_answer([DONE]))
    status, _, _ = await post(proxy, chat(stream=True, stream_options={"bogus": 1}))
    assert status == 400
    await post(proxy, chat(stream=True))
    assert upstream.received[2].json["stream_options"] == {"include_usage": True}


async def test_a_key_is_asked_for_before_a_byte_of_the_body_is_read(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    text = '[[callers]]\nname = "a"\nkey = "env:A"'
    proxy = await start_proxy(openai_config(upstream.base_url, text, backend='auth = "none"'), {"A": "key-a"})
    for path in ("/v1/chat/completions", "/chatfuse/explain"):
        client = await raw(proxy.port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\nExpect: 100-continue\r\n\r\n"
        await client.send(head.encode())
        async with asyncio.timeout(BOUND_S):
            assert (await client.head())[0] == 401


async def test_there_is_one_request_id_and_it_is_ours(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(json_answer(completion(), headers=[("x-request-id", "theirs")]))
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{proxy.base_url}/chat/completions", data=chat(), headers={"x-request-id": "ours"}
        ) as answer,
    ):
        assert answer.headers.getall("x-request-id") == ["ours"]


async def test_odd_usage_numbers_do_not_disturb_an_answer(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    for usage in ({"prompt_tokens": -5, "completion_tokens": "x"}, {"prompt_tokens": None}, [], 5, {}):
        upstream.then(json_answer({"usage": usage}))
        assert (await post(proxy, chat()))[0] == 200
    assert (await post(proxy, chat()))[0] == 200


async def test_an_error_never_tells_an_upstreams_address(start_proxy: StartProxy) -> None:
    async with ScriptedUpstream() as gone:
        base_url, port = gone.base_url, gone.port
    proxy = await start_proxy(openai_config(base_url))
    _, _, body = await post(proxy, chat())
    assert str(port).encode() not in body
    assert b"127.0.0.1" not in body


async def test_total_s_ends_a_stream_that_its_client_does_not_read(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async def flood(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        while True:
            await peer.chunk(delta("x" * 100_000))

    upstream.then(flood)
    proxy = await start_proxy(openai_config(upstream.base_url, backend="total_s = 0.5\nidle_s = 0.2"))
    client = await raw(proxy.port)
    await client.post("/v1/chat/completions", chat(stream=True))
    await client.head()
    async with asyncio.timeout(BOUND_S):
        await upstream.peers[0].gone.wait()


# keep-alive comments

COMMENTS = "[server]\nkeepalive_comment_s = 0.05"


@pytest.mark.parametrize("size", [1000, 9_000_000])
async def test_comments_never_fall_into_an_answer_that_is_no_stream(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect, size: int
) -> None:
    whole = json.dumps({"data": "x" * size}).encode()

    async def halting(_: Received, peer: Peer) -> None:
        await peer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(whole)
        )
        await peer.write(whole)

    upstream.default = halting
    proxy = await start_proxy(openai_config(upstream.base_url, COMMENTS))
    client = await raw(proxy.port)
    for _ in range(2):
        await client.post("/v1/chat/completions", chat(stream=True))
        await asyncio.sleep(0.3)  # a slow reader: comments have their chance meanwhile
        async with asyncio.timeout(BOUND_S):
            answer = await client.answer()
        assert answer.body == whole


async def test_comments_never_fall_into_a_very_long_event(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()
    long = b'data: {"x":"' + b"y" * 400_000 + b'"}\n\n'

    upstream.then(paused_answer(go, [long[:300_000]], [long[300_000:], DONE]))
    proxy = await start_proxy(openai_config(upstream.base_url, COMMENTS))
    reading = asyncio.create_task(post(proxy, chat(stream=True)))
    await upstream.arrival()
    await asyncio.sleep(0.3)
    go.set()
    _, _, body = await reading
    assert long in body
    assert body.replace(b": keep-alive\n\n", b"") == long + DONE
