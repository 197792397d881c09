"""OpenAI's own Python SDK on `/v1/responses` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseErrorEvent

from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream, json_answer, sse_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.dialects import SPOKEN, Spoken

COMPLETIONS, RESPONSES = SPOKEN[1:3]
LONG = "word " * 3000


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 2000"))


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.base_url, api_key="sk", max_retries=0, timeout=30) as client:
        yield client


def answers(upstream: ScriptedUpstream, spoken: Spoken) -> None:
    upstream.then(json_answer(spoken.answer), sse_answer(spoken.stream))


async def test_a_response(client: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    answers(upstream, RESPONSES)
    found = await client.responses.create(
        model="gpt-4o", input="hi", instructions="Be brief.", max_output_tokens=20, previous_response_id="r_0"
    )
    assert found.output_text == "Hello!"
    assert upstream.received[0].json == {
        "model": "gpt-4o",
        "input": "hi",
        "instructions": "Be brief.",
        "max_output_tokens": 20,
        "previous_response_id": "r_0",
    }
    stream = await client.responses.create(model="gpt-4o", input="hi", stream=True)
    assert [event.type async for event in stream] == [
        "response.created",
        "response.output_text.delta",
        "response.completed",
    ]


async def test_a_completion(client: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    answers(upstream, COMPLETIONS)
    found = await client.completions.create(model="gpt-4o", prompt=[1, 2, 3], max_tokens=5)
    assert found.choices[0].text == "Hello!"
    stream = await client.completions.create(model="gpt-4o", prompt="hi", stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].text for chunk in chunks] == ["Hello!"]
    assert upstream.received[1].json["stream_options"] == {"include_usage": True}


async def test_over_the_fuse_is_an_unprocessable_entity(
    client: AsyncOpenAI, upstream: ScriptedUpstream
) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="maximum context length") as caught:
        await client.responses.create(model="gpt-4o", input=LONG)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.UnprocessableEntityError, match="maximum context length"):
        await client.completions.create(model="gpt-4o", prompt=LONG)
    assert upstream.received == []


async def test_an_error_in_the_midst_of_a_response_is_its_error_event(
    client: AsyncOpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.then(sse_answer(RESPONSES.stream[:1], end=False))
    stream = await client.responses.create(model="gpt-4o", input="hi", stream=True)
    *_, last = [event async for event in stream]
    assert isinstance(last, ResponseErrorEvent)
    assert (last.type, last.code) == ("error", "upstream_error")
