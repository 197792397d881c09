"""Every other path goes through untouched, under the rules that keep a key of ours from strangers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

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
    bytes_answer,
    delta,
    json_answer,
    sse_answer,
)
from tests.proxy_fixture import Proxy, openai_config

Connect = Callable[[int], Awaitable[RawClient]]
BOUND_S = 20.0


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


async def test_the_raw_path_and_query_arrive_as_they_were_sent(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    client = await raw(proxy.port)
    path = "/v1/files/a%2Fb%20c/%E6%BC%A2?x=1&x=%2B+&empty=&%5B"
    await client.send(f"DELETE {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-1\r\n\r\n".encode())
    assert (await client.answer()).status == 200
    assert (upstream.received[0].method, upstream.received[0].path) == ("DELETE", path)
    assert upstream.received[0].header("authorization") == "Bearer sk-1"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_method_passes_with_its_body(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, method: str
) -> None:
    body = None if method in ("GET", "OPTIONS") else b"\x00\xff binary"
    async with session.request(method, f"{proxy.base_url}/things", data=body) as answer:
        assert answer.status == 200
    assert upstream.received[0].method == method
    assert upstream.received[0].body == (body or b"")


async def test_a_head_request_has_the_headers_and_no_body(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    async def head(_: Received, peer: Peer) -> None:
        await peer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\nX-Size: 123\r\n\r\n")

    upstream.then(head)
    async with session.head(f"{proxy.base_url}/files/1") as answer:
        assert answer.status == 200
        assert answer.headers["X-Size"] == "123"


async def test_multipart_uploads_pass_byte_for_byte(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x.bin"\r\n\r\n'
        + bytes(range(256)) * 4000
        + b"\r\n--B--\r\n"
    )
    client = await raw(proxy.port)
    await client.send(
        b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    assert (await client.answer()).status == 200
    assert upstream.received[0].body == body
    assert upstream.received[0].header("content-type") == "multipart/form-data; boundary=B"


async def test_an_upload_is_streamed_and_not_held_back(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    first_part_seen = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first part")
        first_part_seen.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(watch, "127.0.0.1", 0)
    proxy.config.write_text(openai_config(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
    assert await proxy.running.reload() is None
    client = await raw(proxy.port)
    await client.send(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await client.send(b"a\r\nfirst part\r\n")
    async with asyncio.timeout(BOUND_S):
        await first_part_seen.wait()
        await client.send(b"3\r\nend\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"ok"
    server.close()


async def test_an_encoded_answer_passes_as_it_is(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    packed = gzip.compress(b'{"data": "' + b"x" * 5000 + b'"}')
    upstream.then(bytes_answer(packed, "application/json", headers=[("Content-Encoding", "gzip")]))
    async with session.get(f"{proxy.base_url}/batches", headers={"Accept-Encoding": "gzip"}) as answer:
        assert await answer.read() == packed
        assert answer.headers["Content-Encoding"] == "gzip"
    assert upstream.received[0].header("accept-encoding") == "gzip"


async def test_repeated_headers_stay_repeated_and_hop_by_hop_ones_stay_here(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    upstream.then(
        json_answer(
            {},
            headers=[("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Connection", "x-hop"), ("X-Hop", "1")],
        )
    )
    client = await raw(proxy.port)
    await client.send(
        b"GET /v1/things HTTP/1.1\r\nHost: x\r\nX-Multi: 1\r\nX-Multi: 2\r\nConnection: keep-alive, x-own\r\n"
        b"X-Own: 1\r\nTE: trailers\r\nProxy-Authorization: Basic abc\r\nx-chatfuse-context: keep\r\n\r\n"
    )
    answer = await client.answer()
    assert [value for name, value in answer.headers if name.lower() == "set-cookie"] == ["a=1", "b=2"]
    assert answer.header("x-hop") is None
    received = upstream.received[0]
    assert [value for name, value in received.headers if name == "X-Multi"] == ["1", "2"]
    for name in ("x-own", "te", "proxy-authorization", "x-chatfuse-context"):
        assert received.header(name) is None


async def test_other_event_streams_pass_as_they_come(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    events = [
        b"event: response.created\ndata: {}\n\n",
        b"event: response.com",
        b'pleted\ndata: {"usage":{}}\n\n',
    ]
    upstream.then(sse_answer(events))
    async with session.post(
        f"{proxy.base_url}/responses", json={"model": "gpt-4o", "stream": True}
    ) as answer:
        assert await answer.read() == b"".join(events)


async def test_a_client_that_leaves_stops_the_upstream(
    proxy: Proxy, upstream: ScriptedUpstream, raw: Connect
) -> None:
    async def slow(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        await peer.chunk(delta("x"))
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(slow)
    client = await raw(proxy.port)
    await client.send(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.head()
    client.reset()
    async with asyncio.timeout(BOUND_S):
        await upstream.peers[0].gone.wait()


async def test_an_unreachable_upstream_is_a_502(
    start_proxy: StartProxy, session: aiohttp.ClientSession
) -> None:
    async with ScriptedUpstream() as gone:
        base_url = gone.base_url
    proxy = await start_proxy(openai_config(base_url))
    async with session.get(f"{proxy.base_url}/things") as answer:
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "upstream_error"


# whose key


async def test_with_our_key_only_listed_paths_pass(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    backend = 'auth = "config"\napi_key = "env:UP"'
    proxy = await start_proxy(openai_config(upstream.base_url, backend=backend), {"UP": "sk-up"})
    async with session.get(f"{proxy.base_url}/models/gpt-4o") as answer:
        assert answer.status == 200
    for method, path in (
        ("GET", "/files"),
        ("POST", "/files"),
        ("DELETE", "/models/x"),
        ("POST", "/models/x"),
    ):
        async with session.request(method, proxy.base_url + path) as answer:
            assert answer.status == 403
            assert (await answer.json())["error"]["code"] == "path_not_allowed"
    assert len(upstream.received) == 1


async def test_listed_paths_may_be_more(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    backend = 'auth = "config"\napi_key = "env:UP"'
    paths = '[server]\npassthrough_paths = ["POST /v1/files", "GET /v1/files/*"]'
    proxy = await start_proxy(openai_config(upstream.base_url, paths, backend=backend), {"UP": "sk-up"})
    for method, path, status in (
        ("POST", "/files", 200),
        ("GET", "/files/1/content", 200),
        ("GET", "/files", 403),
    ):
        async with session.request(method, proxy.base_url + path) as answer:
            assert answer.status == status


async def test_passthrough_asks_for_the_callers_key_like_chat(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    text = '[server]\npassthrough_paths = ["GET /v1/files"]\n[[callers]]\nname = "a"\nkey = "env:A"'
    backend = 'auth = "config"\napi_key = "env:UP"'
    proxy = await start_proxy(
        openai_config(upstream.base_url, text, backend=backend), {"UP": "sk-up", "A": "key-a"}
    )
    async with session.get(f"{proxy.base_url}/files") as answer:
        assert answer.status == 401
    async with session.get(f"{proxy.base_url}/files", headers={"Authorization": "Bearer key-a"}) as answer:
        assert answer.status == 200
    assert upstream.received[0].header("authorization") == "Bearer sk-up"


async def test_without_a_passthrough_backend_unknown_paths_are_404(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, '[server]\npassthrough_backend = "none"'))
    async with session.get(f"{proxy.base_url}/files") as answer:
        assert answer.status == 404


async def test_health_and_unknown_paths(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/", 404), ("/metrics", 404), ("/v2/x", 404)):
        async with session.get(proxy.url + path) as answer:
            assert answer.status == status
            assert answer.headers["x-request-id"]


async def test_the_passthroughs_stream_is_given_whole(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    upstream.then(sse_answer([delta("a"), DONE]))
    async with session.get(f"{proxy.base_url}/threads/1/stream") as answer:
        assert await answer.read() == delta("a") + DONE


async def test_callers_may_only_what_is_listed_also_where_no_key_is_needed(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    text = '[server]\npassthrough_paths = ["GET /v1/files"]\n[[callers]]\nname = "a"\nkey = "env:A"'
    proxy = await start_proxy(openai_config(upstream.base_url, text, backend='auth = "none"'), {"A": "key-a"})
    for method, path, status in (("GET", "/files", 200), ("POST", "/files", 403), ("POST", "/other", 403)):
        headers = {"Authorization": "Bearer key-a"}
        async with session.request(method, proxy.base_url + path, headers=headers) as answer:
            assert answer.status == status
    assert [(one.method, one.path) for one in upstream.received] == [("GET", "/v1/files")]
