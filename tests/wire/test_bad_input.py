"""Whatever is sent gets a clear answer, quickly, and the same proxy serves the next request."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import Received, ScriptedUpstream
from tests.proxy_fixture import openai_config
from tests.wire.conftest import KEY, OUR_KEY, PATH, SETTINGS, Connect, Served, refusal
from tests.wire.requests import chat

# --- what is no request ---


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "invalid_json", "empty"),
        (b"hello", "invalid_json", "not JSON"),
        (b'{"model":"gpt-4o","messages":[', "invalid_json", "not JSON"),
        (b'{"model":"gpt-4o","messages":[NaN]}', "invalid_json", "NaN"),
        (b'{"model":"gpt-4o","temperature":Infinity}', "invalid_json", "Infinity"),
        (b"\xff\xfe", "invalid_json", "UTF-8"),
        (b"\xef\xbb\xbf{}", "invalid_json", "BOM"),
        (b'{"a":' + b"9" * 5000 + b"}", "invalid_json", "digits"),
        (b"[" * 100_000, "invalid_json", "nested too deep"),
        (b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", "nested too deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json", "nested too deep"),
        (b"null", "invalid_request", "null"),
        (b"[]", "invalid_request", "an array"),
        (b'"text"', "invalid_request", "a string"),
    ],
    ids=range(14),
)
async def test_a_body_that_is_no_object(served: Served, body: bytes, code: str, says: str) -> None:
    error = await served.refuses(body, 400, code, says)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": None}, "model"),
        ({"model": []}, "model"),
        ({"model": ""}, "model"),
        ({"model": "a\r\nx-evil: 1"}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"model": "a" * 100_000}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
    ],
    ids=range(16),
)
async def test_a_wrong_shape_is_named_by_its_place(
    served: Served, fields: dict[str, Any], place: str
) -> None:
    error = await served.refuses(chat(**{"content": "hi", **fields}), 400, "invalid_request", place)
    assert error["param"] == place


@pytest.mark.parametrize("second", [b'"model"', b'"mod\\u0065l"'])
async def test_a_key_given_twice(served: Served, second: bytes) -> None:
    body = chat()[:-1] + b"," + second + b':"gpt-4o-mini"}'
    error = await served.refuses(body, 400, "invalid_request", "given twice")
    assert error["param"] == "model"


async def test_usage_given_twice_is_told_when_it_would_have_to_be_edited(served: Served) -> None:
    body = chat(stream=True)[:-1] + b',"stream_options":{"include_usage":false,"include_usage":false}}'
    await served.refuses(body, 400, "invalid_request", "include_usage")


# --- odd, and for the upstream to judge ---


def deep(depth: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "body",
    [
        chat(content="\ud800 and \udfff"),
        b'{"model":"gpt-4o","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        chat(content="<|endoftext|><|im_start|>system<|fim_prefix|>"),
        chat(content=""),
        chat(content="\x00\x7f\u202e"),
        chat(messages=[{"role": "user"}]),
        chat(messages=[{"role": "user", "content": None}]),
        chat(messages=[{"role": "user", "content": []}]),
        chat(
            messages=[{"role": "user", "content": ["text", {}, {"type": "text"}, {"type": "x", "text": 1}]}]
        ),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 7}}]}]),
        chat(messages=[{"role": "judge", "content": "x"}, {"role": "", "content": "y"}]),
        chat(messages=[{"role": "\ud800", "content": "x", "name": ["\ud800"]}]),
        chat(messages=[{"role": "tool", "content": "x", "tool_call_id": "c"}]),
        chat(messages=[{"role": "tool", "content": "x"}, {"role": "function", "content": "x"}]),
        chat(messages=[{"role": "assistant", "tool_calls": [None, 1, {}, {"function": []}]}]),
        chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": 1, "arguments": {}}}]}]),
        chat(messages=[{"role": "assistant", "tool_calls": {"a": 1}, "function_call": "x"}]),
        chat(tools="all", functions={}, tool_choice=[]),
        chat(tools=[None, 1, {"function": {"name": None, "parameters": []}}]),
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": [1]}}}]),
        chat(response_format=[], modalities=1, prediction="x"),
        chat(response_format={"type": "json_schema", "json_schema": {"name": 1, "schema": [1]}}),
        chat(max_tokens=None, n=None, stream=None, stream_options=None),
        chat(temperature="hot", seed=1.5, stop={}),
        chat(max_tokens="many", max_completion_tokens=-1, n=0.5),
    ],
    ids=range(26),
)
async def test_odd_but_for_the_upstream_to_judge(served: Served, body: bytes) -> None:
    answer = await served.passes(body)
    assert int(answer.header("x-chatfuse-tokens-original") or 0) > 0


async def test_special_tokens_in_a_text_are_counted_as_text(served: Served) -> None:
    plain = await served.passes(chat(content="x"))
    special = await served.passes(chat(content="<|endoftext|>"))
    tokens = [int(answer.header("x-chatfuse-tokens-original") or 0) for answer in (plain, special)]
    assert tokens[1] - tokens[0] >= 4  # as one special token it would be 0


@pytest.mark.parametrize(
    "body",
    [
        chat(x=json.loads(nested(490))),
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": deep(240)}}]),
        chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": deep(240)}}),
        chat(
            messages=[
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": f"c{i}",
                            "type": "function",
                            "function": {"name": "f", "arguments": nested(100_000)},
                        }
                        for i in range(2)
                    ],
                },
                {"role": "tool", "tool_call_id": "c0", "content": nested(100_000)},
                {"role": "tool", "tool_call_id": "c1", "content": nested(100_000)},
            ]
        ),
    ],
    ids=["unknown field", "tools", "response format", "arguments"],
)
async def test_deep_nesting_is_no_fault_of_ours(served: Served, body: bytes) -> None:
    if (answer := await served.ask(body)).status != 200:
        refusal(answer, 400, "invalid_json", "nested")


@pytest.mark.parametrize("at", ["x", "tools", "response_format", "messages", "content"])
async def test_a_depth_of_1000_wherever_it_is(served: Served, at: str) -> None:
    """As deep as the parser goes; deeper than Python's own recursion."""
    inside = '{"properties":{"a":' * 480 + "1" + "}}" * 480
    spots = {
        "x": f'"x":{nested(1000)}',
        "tools": f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{inside}}}}}]',
        "response_format": (
            f'"response_format":{{"type":"json_schema","json_schema":{{"name":"s","schema":{inside}}}}}'
        ),
        "messages": f'"messages":[{{"role":"user","content":"x","y":{nested(1000)}}}]',
        "content": f'"messages":[{{"role":"user","content":[{{"type":"text","text":{nested(1000)}}}]}}]',
    }
    messages = "" if '"messages"' in spots[at] else ',"messages":[{"role":"user","content":"x"}]'
    body = f'{{"model":"gpt-4o",{spots[at]}{messages}}}'.encode()
    if (answer := await served.ask(body)).status == 200:
        assert served.upstream.received[-1].body == body
    else:
        refusal(answer, 400, "invalid_request")


async def test_100_000_tiny_messages(served: Served) -> None:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "x"} for i in range(100_000)]
    answer = await served.passes(chat(messages=messages))
    assert int(answer.header("x-chatfuse-tokens-original") or 0) > 400_000


# --- codings ---


async def test_a_packed_body_goes_on_as_it_came_and_is_counted(served: Served) -> None:
    plain = await served.passes(chat(content="word " * 500))
    packed = await served.passes(gzip.compress(chat(content="word " * 500)), "Content-Encoding: gzip\r\n")
    assert served.upstream.received[-1].header("content-encoding") == "gzip"
    tokens = [answer.header("x-chatfuse-tokens-original") for answer in (plain, packed)]
    assert tokens[0] == tokens[1]


async def test_a_packed_body_that_must_be_edited_goes_on_unpacked(served: Served) -> None:
    body = chat(stream=True)
    assert (await served.ask(gzip.compress(body), "Content-Encoding: gzip\r\n")).status == 200
    (received,) = served.upstream.received
    assert received.header("content-encoding") is None
    assert received.json == {**json.loads(body), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("body", "coding", "status", "code", "says"),
    [
        (chat(), "gzip", 400, "invalid_request", "not valid gzip"),
        (chat(), "deflate", 400, "invalid_request", "not valid deflate"),
        (gzip.compress(chat())[:-9], "gzip", 400, "invalid_request", "cut off"),
        (gzip.compress(chat()) + gzip.compress(b"x"), "gzip", 400, "invalid_request", "follows"),
        (gzip.compress(b"hello"), "gzip", 400, "invalid_json", "not JSON"),
        (gzip.compress(b" " * 100_000_000), "gzip", 413, "request_too_large", "inflates to more"),
        (gzip.compress(gzip.compress(b" " * 10**8)), "gzip, gzip", 413, "request_too_large", "inflates"),
        (chat(), "br", 415, "invalid_request", "'br'"),
        (chat(), "\\x00\"'", 415, "invalid_request", "cannot be read"),
    ],
    ids=range(9),
)
async def test_a_coding_that_cannot_be_undone(
    served: Served, body: bytes, coding: str, status: int, code: str, says: str
) -> None:
    await served.refuses(body, status, code, says, f"Content-Encoding: {coding}\r\n")


# --- who asks, and for what ---

CALLERS = f"""
{SETTINGS}
[[callers]]
name = "c"
key = "env:CALLER_KEY"
models = ["gpt-*"]
"""


@pytest.fixture
async def bound(start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect) -> Served:
    """A proxy that knows its callers, serves a few models and speaks with a key of its own."""
    text = openai_config(upstream.base_url, CALLERS, backend='auth = "config"\napi_key = "env:OUR_KEY"')
    text = text.replace('name = "*"', 'name = "gpt-*"')
    return Served(await start_proxy(text, {"CALLER_KEY": KEY, "OUR_KEY": OUR_KEY}), upstream, raw)


async def test_a_model_nobody_serves(bound: Served) -> None:
    error = await bound.refuses(chat(model="llama" * 90), 404, "model_not_found", "is not served here")
    assert error["param"] == "model"
    assert len(error["message"]) < 200
    assert (await bound.ask(chat())).status == 200
    assert bound.upstream.received[0].header("authorization") == f"Bearer {OUR_KEY}"


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer x", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xff"]
)
async def test_a_key_that_is_none(bound: Served, value: str | None) -> None:
    field = "" if value is None else f"Authorization: {value}\r\n"
    for path in (PATH, "/v1/embeddings", "/v1/files", "/v1/models"):
        method = "GET" if path == "/v1/models" else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{field}Content-Length: 2\r\n\r\n{{}}"
        answer = await bound.send(head.encode("latin-1"))
        if path == PATH and answer.status == 400:
            continue  # the body is read before the key
        refusal(answer, 401, "invalid_api_key")
        assert KEY.encode() not in answer.body
    assert bound.upstream.received == []


@pytest.mark.parametrize("path", ["/v1/%ff%fe", "/v1/files/" + "a" * 5000, "/v1/%00", "/v1/'\"<b>"])
async def test_a_path_that_is_not_listed_is_told_whatever_it_holds(bound: Served, path: str) -> None:
    answer = await bound.send(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode("latin-1")
    )
    error = refusal(answer, 403, "path_not_allowed")
    assert len(error["message"]) < 1000
    assert bound.upstream.received == []


async def test_an_upstream_that_fails_says_no_key(served: Served) -> None:
    async def hang_up(_: Received, peer: Any) -> None:
        peer.reset()

    served.upstream.then(hang_up)
    refusal(await served.ask(chat()), 502, "upstream_error")
