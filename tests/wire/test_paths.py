"""A path spelled otherwise is not a way around the fuse, the cap and the allow lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.handlers.incoming import canonical
from tests.conftest import StartProxy
from tests.fakes.raw_client import RawAnswer, RawClient
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

Connect = Callable[[int], Awaitable[RawClient]]
BOUND_S = 20.0
REFUSED = 'chatfuse_requests_total{backend="",model="",outcome="refused"}'
LONG = chat("hello " * 50)


@pytest.fixture
async def fused(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 5"))


async def ask(client: RawClient, method: str, path: str, body: bytes = LONG) -> RawAnswer:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    async with asyncio.timeout(BOUND_S):
        await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await client.answer()


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/v1/chat///completions//",
        "/v1/chat%2Fcompletions",
        "/v1/%63hat/completions",
        "/v1/%2563hat/completions",
        "/v1/%25252563hat/completions",
        "http://x/v1/%63hat/completions",
        "/v1/Chat/COMPLETIONS",
        "/v1/chat/completions;a=b",
        "/v1/chat;a=b/completions",
        "/v1/chat/completions%3Ba",
        "/v1/chat/completions%3Fa=b",
        "/v1/chat/completions%23a",
        "/v1/chat/completions%20",
        "/v1/chat/completions%00",
        "/v1/chat/x/%252e%252e/completions",
        "/v1/chat%255ccompletions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/?a=b",
    ],
)
async def test_another_spelling_of_a_chat_is_told_the_right_one(
    fused: Proxy, upstream: ScriptedUpstream, raw: Connect, method: str, path: str
) -> None:
    answer = await ask(await raw(fused.port), method, path)
    assert answer.status == 404
    error = json.loads(answer.body)["error"]
    assert error["code"] == "not_found"
    assert error["message"].endswith("the path is /v1/chat/completions")
    assert upstream.received == []
    assert (await fused.metrics())[REFUSED] == 1


@pytest.mark.parametrize("name", ["completions", "embeddings", "responses", "messages", "models"])
@pytest.mark.parametrize("spelling", ["/v1/{}/", "/v1//{}", "/v1/{};a"])
async def test_so_are_those_of_the_other_paths(
    fused: Proxy, upstream: ScriptedUpstream, raw: Connect, name: str, spelling: str
) -> None:
    answer = await ask(await raw(fused.port), "POST", spelling.format(name))
    assert answer.status == 404
    assert f"the path is /v1/{name}" in json.loads(answer.body)["error"]["message"]
    assert upstream.received == []


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions#x", "/v1/chat/completions?#", "/v1/files#", "http://x/v1/files#/"]
)
async def test_a_fragment_is_refused(
    fused: Proxy, upstream: ScriptedUpstream, raw: Connect, path: str
) -> None:
    answer = await ask(await raw(fused.port), "POST", path)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == "invalid_request"
    assert upstream.received == []
    assert (await fused.metrics())[REFUSED] == 1


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "QUERY", "PROPFIND"])
@pytest.mark.parametrize("name", ["chat/completions", "completions", "embeddings", "responses", "messages"])
async def test_a_method_that_may_make_something_is_post(
    fused: Proxy, upstream: ScriptedUpstream, raw: Connect, method: str, name: str
) -> None:
    answer = await ask(await raw(fused.port), method, f"/v1/{name}?a")
    assert answer.status == 405
    error = json.loads(answer.body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error.get("code") == (None if name == "messages" else "method_not_allowed")
    assert (answer.header("allow") or "").split(", ")[0] == "POST"
    assert upstream.received == []
    assert (await fused.metrics())[REFUSED] == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions?limit=2"),
        ("OPTIONS", "/v1/chat/completions"),
        ("OPTIONS", "/v1/embeddings"),
        ("GET", "/v1/chat/completions/chatcmpl-1"),
        ("POST", "/v1/chat/completions/chatcmpl-1"),
        ("DELETE", "/v1/chat/completions/chatcmpl-1"),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages"),
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/threads/t/messages"),
        ("DELETE", "/v1/models/gpt-4o"),
        ("GET", "/v1/files/a%2Fb%20c;d//"),
    ],
)
async def test_paths_that_are_others_pass(
    fused: Proxy, upstream: ScriptedUpstream, raw: Connect, method: str, path: str
) -> None:
    assert (await ask(await raw(fused.port), method, path, b"")).status == 200
    assert [(one.method, one.path) for one in upstream.received] == [(method, path)]


SEGMENTS = ("v1", "chat", "completions")


@given(st.data())
def test_the_canonical_path_is_found_under_any_coding(data: st.DataObject) -> None:
    path = ""
    for segment in SEGMENTS:
        path += data.draw(st.sampled_from(["/", "//", "%2f", "%252F"])) if path else "/"
        for letter in segment:
            for _ in range(data.draw(st.integers(0, 2))):
                letter = "".join(f"%{ord(c):02x}" for c in letter)
            path += letter
        path += data.draw(st.sampled_from(["", ";", ";a=b", "%3bx", "%09"]))
    path += data.draw(st.sampled_from(["", "/", "%2F", "#x", "%3fx", "%2523"]))
    assert canonical(path) == "/v1/chat/completions"


@given(st.text(min_size=1))
def test_the_canonical_path_of_anything_is_one_that_stays(text: str) -> None:
    found = canonical("/v1/" + quote(text, safe="", errors="replace"))
    assert canonical(found) == found
