"""Anthropic's own Python SDK: what works against Anthropic works here, and errors are its own classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from tests.conftest import StartProxy
from tests.fakes.upstream import Answer, ScriptedUpstream, json_answer, sse_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.dialects import MESSAGE, SPOKEN, event

HELLO: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOL: ToolParam = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
STREAM = SPOKEN[3].stream


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 2000"))


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=proxy.url, api_key="sk-ant", max_retries=0, timeout=30) as client:
        yield client


async def test_create(client: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    upstream.then(json_answer(MESSAGE))
    answer = await client.messages.with_raw_response.create(model="claude", messages=HELLO, max_tokens=9)
    message = await answer.parse()
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello!"
    assert answer.headers["x-chatfuse-model"] == "claude"
    assert answer.headers["x-chatfuse-max-tokens"] == "9"
    received = upstream.received[0]
    assert received.header("authorization") == "Bearer sk-ant"
    assert received.header("anthropic-version")
    assert received.json == {"model": "claude", "messages": HELLO, "max_tokens": 9}


async def test_a_stream_with_its_helper(client: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    begin = event(block, "content_block_start")
    upstream.then(sse_answer([STREAM[0], begin, *STREAM[1:]]))
    async with client.messages.stream(model="claude", messages=HELLO, max_tokens=9) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert texts == ["Grüße"]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)


async def test_a_round_with_tools(client: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}}
    upstream.then(json_answer({**MESSAGE, "content": [use], "stop_reason": "tool_use"}), json_answer(MESSAGE))
    first = await client.messages.create(model="claude", messages=HELLO, max_tokens=9, tools=[TOOL])
    assert first.stop_reason == "tool_use"
    messages: list[MessageParam] = [
        *HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"}]},
    ]
    second = await client.messages.create(model="claude", messages=messages, max_tokens=9, tools=[TOOL])
    assert second.content[0].type == "text"
    assert upstream.received[1].json["messages"][2] == messages[2]


async def test_tokens_are_counted_upstream(client: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    upstream.then(json_answer({"input_tokens": 7}))
    assert (await client.messages.count_tokens(model="claude", messages=HELLO)).input_tokens == 7


async def test_over_the_fuse_is_an_unprocessable_entity(
    client: AsyncAnthropic, upstream: ScriptedUpstream
) -> None:
    long: list[MessageParam] = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(anthropic.UnprocessableEntityError, match="prompt is too long") as caught:
        await client.messages.create(model="claude", messages=long, max_tokens=9)
    assert caught.value.type == "invalid_request_error"
    assert upstream.received == []


def refused(status: int, kind: str) -> Answer:
    return json_answer({"type": "error", "error": {"type": kind, "message": "no"}}, status)


@pytest.mark.parametrize(
    ("status", "kind", "raises"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
async def test_an_upstreams_own_error_passes(
    client: AsyncAnthropic,
    upstream: ScriptedUpstream,
    status: int,
    kind: str,
    raises: type[anthropic.APIStatusError],
) -> None:
    upstream.then(refused(status, kind))
    with pytest.raises(raises) as caught:
        await client.messages.create(model="claude", messages=HELLO, max_tokens=9)
    body: Any = caught.value.body
    assert body["error"]["type"] == kind


async def test_an_error_in_mid_stream_is_an_error_of_the_sdk(
    client: AsyncAnthropic, upstream: ScriptedUpstream
) -> None:
    upstream.then(sse_answer(STREAM[:2], end=False))

    async def read() -> None:
        stream = await client.messages.create(model="claude", messages=HELLO, max_tokens=9, stream=True)
        async for each in stream:
            assert each.type == "message_start"

    with pytest.raises(anthropic.APIStatusError) as caught:
        await read()
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
