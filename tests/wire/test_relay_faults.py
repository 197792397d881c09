"""What the client gets when the upstream, or the client itself, does not behave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import (
    DONE,
    SSE_HEAD,
    Answer,
    Peer,
    Received,
    ScriptedUpstream,
    completion,
    delta,
    json_answer,
    sse_answer,
)
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

BOUND_S = 20.0
TWO_BACKENDS = """
[admin]
port = 0
[[backends]]
name = "a"
kind = "openai"
base_url = "{a}"
{options}
[[backends]]
name = "b"
kind = "openai"
base_url = "{b}"
{options_b}
[[models]]
name = "gpt-4o"
targets = [{{ backend = "a" }}]
fallbacks = ["second"]
[[models]]
name = "second"
targets = [{{ backend = "b", model = "gpt-4o-mini" }}]
"""

Connect = Callable[[int], Awaitable[RawClient]]


async def reset(_: Received, peer: Peer) -> None:
    peer.reset()


async def half_head(_: Received, peer: Peer) -> None:
    await peer.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
    peer.reset()


async def garbage(_: Received, peer: Peer) -> None:
    await peer.write(b"\x00\x01\x02 this is not HTTP\r\n\r\n")
    peer.keep_open = False


async def half_body(_: Received, peer: Peer) -> None:
    await peer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
    peer.keep_open = False


async def post(proxy: Proxy, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=body, headers=headers) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


@pytest.mark.parametrize("fault", [reset, half_head, garbage, half_body])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_gives_no_answer_is_a_502(
    start_proxy: StartProxy, upstream: ScriptedUpstream, fault: Answer, stream: bool
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.default = fault
    status, headers, body = await post(proxy, chat(stream=stream))
    assert status == 502
    assert b'"code":"upstream_error"' in body
    assert headers["content-type"] == "application/json"
    metrics = await proxy.metrics()
    assert [v for k, v in metrics.items() if k.startswith("chatfuse_requests_total")] == [1]
    assert any('outcome="upstream_error"' in key for key in metrics)
    assert metrics['chatfuse_inflight{backend="up"}'] == 0


async def test_an_upstream_that_refuses_connections_is_a_502_and_not_ready(start_proxy: StartProxy) -> None:
    async with ScriptedUpstream() as gone:
        base_url = gone.base_url
    proxy = await start_proxy(openai_config(base_url))
    status, _, body = await post(proxy, chat())
    assert status == 502
    assert b"cannot be reached" in body
    async with aiohttp.ClientSession() as session, session.get(f"{proxy.url}/readyz") as answer:
        assert answer.status == 503


@pytest.mark.parametrize("fault", [reset, half_head, garbage, half_body, json_answer({"error": {}}, 503)])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_fallback_model_answers_where_the_first_one_did_not(
    start_proxy: StartProxy, upstream: ScriptedUpstream, fault: Answer, stream: bool
) -> None:
    async with ScriptedUpstream() as second:
        second.default = sse_answer([delta("x"), DONE]) if stream else json_answer(completion("from b"))
        upstream.default = fault
        none = 'auth = "none"'
        proxy = await start_proxy(
            TWO_BACKENDS.format(a=upstream.base_url, b=second.base_url, options=none, options_b=none)
        )
        status, headers, body = await post(proxy, chat(stream=stream))
        assert status == 200
        assert body == delta("x") + DONE if stream else b"from b" in body
        assert headers["x-chatfuse-backend"] == "b"
        assert headers["x-chatfuse-model"] == "second"
        assert second.received[0].json["model"] == "gpt-4o-mini"


async def test_a_clients_key_never_crosses_a_fallback(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as second:
        upstream.default = reset
        proxy = await start_proxy(
            TWO_BACKENDS.format(
                a=upstream.base_url, b=second.base_url, options='auth = "client"', options_b='auth = "client"'
            )
        )
        status, _, _ = await post(proxy, chat(), Authorization="Bearer sk-client")
        assert status == 502
        assert second.received == []


async def test_the_configs_key_replaces_the_clients_credentials(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(
        openai_config(upstream.base_url, backend='auth = "config"\napi_key = "env:UP_KEY"'),
        {"UP_KEY": "sk-ours"},
    )
    await post(
        proxy,
        chat(),
        Authorization="Bearer sk-client",
        **{"api-key": "sk-2", "OpenAI-Organization": "org-1", "Cookie": "a=b", "X-Other": "stays"},
    )
    received = upstream.received[0]
    assert received.header("authorization") == "Bearer sk-ours"
    assert received.header("x-other") == "stays"
    for name in ("api-key", "openai-organization", "cookie"):
        assert received.header(name) is None


async def test_an_upstreams_own_error_passes_as_it_came(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(json_answer({"error": {"message": "slow down", "code": 7}}, 429, [("Retry-After", "3")]))
    status, headers, body = await post(proxy, chat())
    assert (status, body) == (429, b'{"error": {"message": "slow down", "code": 7}}')
    assert headers["retry-after"] == "3"


async def test_a_redirect_is_passed_on_and_not_followed(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(json_answer({}, 307, [("Location", "http://127.0.0.1:1/elsewhere")]))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(), allow_redirects=False) as answer,
    ):
        assert answer.status == 307
    assert len(upstream.received) == 1


async def test_an_upstream_that_breaks_in_mid_stream_ends_with_an_error_event_and_no_done(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(sse_answer([delta("one"), b"data: {half"], end=False))
    status, _, body = await post(proxy, chat(stream=True))
    assert status == 200
    assert body.startswith(delta("one") + b'data: {"error":')
    assert body.endswith(b"\n\n")
    assert b"[DONE]" not in body
    assert b"half" not in body
    metrics = await proxy.metrics()
    assert metrics['chatfuse_requests_total{backend="up",model="gpt-4o",outcome="interrupted"}'] == 1


async def test_a_long_body_that_breaks_off_is_seen_to_be_broken(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))

    async def long_half(_: Received, peer: Peer) -> None:
        await peer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n\r\n"
        )
        await peer.write(b"x" * 10_000_000)
        peer.keep_open = False

    upstream.then(long_half)
    with pytest.raises(aiohttp.ClientError):
        await post(proxy, chat())


async def test_a_long_body_passes_whole(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(json_answer({"data": "x" * 12_000_000}))
    _, _, body = await post(proxy, chat())
    assert len(body) == len('{"data": ""}') + 12_000_000


@pytest.mark.parametrize("timer", ["ttft_s", "idle_s", "total_s"])
async def test_each_timer_ends_a_silent_stream(
    start_proxy: StartProxy, upstream: ScriptedUpstream, timer: str
) -> None:
    async def silent(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        if timer != "ttft_s":
            await peer.chunk(delta("one"))
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(silent)
    proxy = await start_proxy(openai_config(upstream.base_url, backend=f"{timer} = 0.2"))
    async with asyncio.timeout(BOUND_S):
        status, _, body = await post(proxy, chat(stream=True))
        await upstream.peers[0].gone.wait()
    assert status == (504 if timer == "ttft_s" else 200)
    assert b"upstream_timeout" in body
    assert timer.encode() in body


async def test_an_upstream_that_never_sends_a_head_is_a_504(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async def silent(_: Received, peer: Peer) -> None:
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(silent)
    proxy = await start_proxy(openai_config(upstream.base_url, backend="ttft_s = 0.2"))
    async with asyncio.timeout(BOUND_S):
        status, _, _ = await post(proxy, chat())
        await upstream.peers[0].gone.wait()
    assert status == 504


async def test_a_slow_client_is_not_taken_for_a_silent_upstream(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    big = delta("x" * 200_000)
    upstream.then(sse_answer([big] * 100 + [DONE]))
    proxy = await start_proxy(openai_config(upstream.base_url, backend="idle_s = 0.3"))
    client = await raw(proxy.port)
    await client.post("/v1/chat/completions", chat(stream=True))
    await client.head()
    await asyncio.sleep(1.0)  # longer than idle_s: the pause itself is what is tested
    async with asyncio.timeout(BOUND_S):
        whole = b""
        while part := await client.chunk():
            whole += part
    assert whole == big * 100 + DONE


@pytest.mark.parametrize("phase", ["before the head", "before the first event", "in the stream"])
async def test_a_client_that_leaves_stops_the_upstream(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect, phase: str
) -> None:
    async def slow(_: Received, peer: Peer) -> None:
        if phase != "before the head":
            await peer.write(SSE_HEAD)
        if phase == "in the stream":
            await peer.chunk(delta("one"))
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(slow)
    proxy = await start_proxy(openai_config(upstream.base_url))
    client = await raw(proxy.port)
    await client.post("/v1/chat/completions", chat(stream=True))
    await upstream.arrival()
    if phase == "in the stream":
        await client.head()
        await client.chunk()
    client.reset()
    async with asyncio.timeout(BOUND_S):
        await upstream.peers[0].gone.wait()
        while not any('outcome="client_gone"' in key for key in await proxy.metrics()):
            await asyncio.sleep(0.01)
    assert (await proxy.metrics())['chatfuse_inflight{backend="up"}'] == 0


async def test_a_half_closed_client_counts_as_gone(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async def slow(_: Received, peer: Peer) -> None:
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(slow)
    proxy = await start_proxy(openai_config(upstream.base_url))
    client = await raw(proxy.port)
    await client.post("/v1/chat/completions", chat())
    await upstream.arrival()
    client.writer.write_eof()
    async with asyncio.timeout(BOUND_S):
        await upstream.peers[0].gone.wait()


async def test_a_kept_connection_that_the_upstream_closed_is_replaced_unseen(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    assert (await post(proxy, chat()))[0] == 200
    # The second request arrives on the kept connection and is cut without a byte.
    upstream.then(reset)
    status, _, _ = await post(proxy, chat("again"))
    assert status == 200
    assert [request.json["messages"][0]["content"] for request in upstream.received] == [
        "hi",
        "again",
        "again",
    ]
    assert upstream.connections == 2


async def test_a_fresh_connection_that_is_cut_is_not_tried_twice(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(reset)
    assert (await post(proxy, chat()))[0] == 502
    assert len(upstream.received) == 1
