"""How what is passed through begins, breaks, stalls and is told: every ending of a path we do not know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest

from backends import http
from backends.base import UpstreamRequest
from backends.errors import ConnectFailed
from tests.conftest import StartProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import SSE_HEAD, Peer, Received, ScriptedUpstream, json_answer, sse_answer
from tests.proxy_fixture import Proxy, openai_config

Connect = Callable[[int], Awaitable[RawClient]]
BOUND_S = 20.0


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


async def outcomes(proxy: Proxy) -> dict[str, float]:
    """How many requests ended how."""
    return {
        name.partition('outcome="')[2].rstrip('"}'): value
        for name, value in (await proxy.metrics()).items()
        if name.startswith("chatfuse_requests_total")
    }


async def cut(raw: Connect, proxy: Proxy) -> bytes:
    """What comes of an event stream before its connection is cut."""
    client = await raw(proxy.port)
    parts = []

    async def read() -> None:
        while part := await client.chunk():
            parts.append(part)

    async with asyncio.timeout(BOUND_S):
        await client.send(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.head()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError, ValueError)):
            await read()
    return b"".join(parts)


# how an answer begins and breaks


async def test_one_request_id_is_passed_on(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    upstream.then(json_answer({}, headers=[("X-Request-ID", "upstream's")]))
    async with session.get(f"{proxy.base_url}/things", headers={"X-Request-Id": "mine"}) as answer:
        assert answer.headers.getall("x-request-id") == ["mine"]


@pytest.mark.parametrize("head", [SSE_HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"])
async def test_a_head_does_not_wait_for_its_body(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect, head: bytes
) -> None:
    head_is_here = asyncio.Event()

    async def slow(_: Received, peer: Peer) -> None:
        await peer.write(head)
        await head_is_here.wait()
        await peer.write(b"4\r\n:ok\n\r\n0\r\n\r\n" if head is SSE_HEAD else b":ok\n")

    upstream.then(slow)
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers = await client.head()
        head_is_here.set()
        assert status == 200
        assert await client._body(headers) == b":ok\n"


ENDS = [b"data: a\n\n", b"data: a\r\n\r\n", b"data: a\r\r", b": comment\n\n"]
HALVES = [b'data: {"b":"hal', b"data: a\n", b"data: a\r\n", b"event: x\ndata", b"d"]


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_breaks_between_events_ends_with_an_error(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect, end: bytes
) -> None:
    upstream.then(sse_answer([b"data: 1\n\n", *(end[i : i + 1] for i in range(len(end)))], end=False))
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.answer()
    assert answer.body.startswith(b"data: 1\n\n" + end + b'data: {"error":')
    assert answer.body.endswith(b"}\n\n")
    assert await outcomes(proxy) == {"interrupted": 1}


@pytest.mark.parametrize("half", HALVES)
async def test_a_stream_that_breaks_in_an_event_is_cut_there(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect, half: bytes
) -> None:
    upstream.then(sse_answer([b"data: 1\n\n", half], end=False))
    assert await cut(raw, proxy) == b"data: 1\n\n" + half
    assert await outcomes(proxy) == {"interrupted": 1}


async def test_a_packed_stream_that_breaks_is_cut_there(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    packed = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")

    async def broken(_: Received, peer: Peer) -> None:
        await peer.write(packed)
        await peer.chunk(b"packed\n\n")
        peer.keep_open = False

    upstream.then(broken)
    assert await cut(raw, proxy) == b"packed\n\n"
    assert await outcomes(proxy) == {"interrupted": 1}


async def test_a_drain_does_not_speak_into_an_event(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async def halfway(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        await peer.chunk(b"data: hal")
        await peer.wait_gone()

    upstream.then(halfway)
    proxy = await start_proxy(openai_config(upstream.base_url, "[server]\ndrain_s = 0.2"))
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.head()
        assert await client.chunk() == b"data: hal"
        await proxy.stop()
        with suppress(ConnectionError):
            assert await client.reader.read() == b""


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_switch_of_protocols_that_nobody_asked_for_is_a_502(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, method: str
) -> None:
    async def switch(_: Received, peer: Peer) -> None:
        await peer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(switch)
    async with asyncio.timeout(BOUND_S):
        async with session.request(method, f"{proxy.base_url}/things") as answer:
            assert answer.status == 502
        async with session.get(f"{proxy.base_url}/things") as answer:
            assert answer.status == 200


# uploads


@pytest.mark.parametrize("limits", [("body_idle_s = 0.2", "ttft_s = 8"), ("body_idle_s = 8", "ttft_s = 0.3")])
@pytest.mark.parametrize("framing", ["Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n"])
async def test_an_upload_that_stalls_is_the_clients_fault(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect, limits: tuple[str, str], framing: str
) -> None:
    ours, theirs = limits
    proxy = await start_proxy(openai_config(upstream.base_url, f"[server]\n{ours}", backend=theirs))
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(f"POST /v1/files HTTP/1.1\r\nHost: x\r\n{framing}".encode())
        answer = await client.answer()
    assert answer.status == 408
    assert json.loads(answer.body)["error"]["code"] == "request_timeout"
    assert set(await outcomes(proxy)) <= {"refused", "client_gone"}


async def test_an_upload_over_the_limit_is_told_before_it_is_asked_for(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, "[server]\nmax_body_bytes = 2000"))
    client = await raw(proxy.port)
    async with asyncio.timeout(BOUND_S):
        await client.send(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 2001\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await client.answer()).status == 413
    assert await outcomes(proxy) == {"refused": 1}


# what is sent again, and what is told


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_only_what_fails_at_once_on_a_kept_connection_is_sent_again(
    proxy: Proxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setattr(http, "RESEND_WITHIN_S", 0.3)

    async def late(_: Received, peer: Peer) -> None:
        await asyncio.sleep(0.6)  # it may have been at work
        peer.reset()

    async def at_once(_: Received, peer: Peer) -> None:
        peer.reset()

    url, body = (f"{proxy.base_url}/things", None)
    if method == "POST":
        url, body = (f"{proxy.base_url}/embeddings", b'{"model":"m"}')
    for fault, status, requests in ((at_once, 200, 3), (late, 502, 2)):
        upstream.received.clear()
        upstream.then(json_answer({}), fault)
        for wanted in (200, status):
            async with session.request(method, url, data=body) as answer:
                assert answer.status == wanted
        assert len(upstream.received) == requests


async def test_every_ending_is_told_once(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    async def hang_up(_: Received, peer: Peer) -> None:
        peer.reset()

    text = '[server]\npassthrough_paths = ["GET /v1/x"]\n[[callers]]\nname = "a"\nkey = "env:A"'
    proxy = await start_proxy(openai_config(upstream.base_url, text, backend='auth = "none"'), {"A": "key-a"})
    upstream.then(json_answer({}), json_answer({}, 404), hang_up, hang_up)
    for path, key, status in (
        ("x", "key-a", 200),
        ("x", "key-a", 404),
        ("x", "key-a", 502),
        ("x", "other", 401),
        ("y", "key-a", 403),
    ):
        headers = {"Authorization": f"Bearer {key}"}
        async with session.get(f"{proxy.base_url}/{path}", headers=headers) as answer:
            assert answer.status == status
    assert await outcomes(proxy) == {"ok": 1, "upstream_error": 2, "refused": 2}
    assert (await proxy.metrics())['chatfuse_inflight{backend="up"}'] == 0


async def test_a_closed_backend_cannot_be_reached(upstream: ScriptedUpstream) -> None:
    backend = http.HttpBackend(http.HttpOptions("up", upstream.base_url))
    request = UpstreamRequest("GET", "/v1/x", ())
    (await backend.send(request)).close()
    await backend.close()
    with pytest.raises(ConnectFailed):
        await backend.send(request)
    with pytest.raises(ConnectFailed):
        await backend.open_socket(request, 1000)
