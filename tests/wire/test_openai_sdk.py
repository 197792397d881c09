"""OpenAI's own Python SDK, sync and async: what works against OpenAI works here, and errors are its own classes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.conftest import StartProxy
from tests.fakes.upstream import (
    DONE,
    USAGE_EVENT,
    Answer,
    Peer,
    Received,
    ScriptedUpstream,
    bytes_answer,
    completion,
    delta,
    json_answer,
    sse_answer,
)
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.scripts import CALL, MODELS, TOOL, refused

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
STREAM = [delta("Hel"), delta("lo!"), USAGE_EVENT, DONE]


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    text = openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 2000", backend="ttft_s = 1.0")
    return await start_proxy(text)


@contextmanager
def blocking(proxy: Proxy) -> Iterator[OpenAI]:
    with OpenAI(base_url=proxy.base_url, api_key="sk-client", max_retries=0, timeout=30) as client:
        yield client


@asynccontextmanager
async def concurrent(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.base_url, api_key="sk-client", max_retries=0, timeout=30) as client:
        yield client


# --- create ---


async def test_create(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    def ask() -> Any:
        with blocking(proxy) as client:
            return client.chat.completions.with_raw_response.create(model="gpt-4o", messages=HELLO)

    answer = await asyncio.to_thread(ask)
    assert answer.parse().choices[0].message.content == "Hello!"
    assert answer.headers["x-chatfuse-model"] == "gpt-4o"
    assert int(answer.headers["x-chatfuse-tokens-in"]) > 0
    assert upstream.received[0].header("authorization") == "Bearer sk-client"

    async with concurrent(proxy) as client:
        found = await client.chat.completions.create(model="gpt-4o", messages=HELLO, max_tokens=5)
    assert found.choices[0].message.content == "Hello!"
    assert found.usage is not None
    assert found.usage.prompt_tokens == 9
    assert upstream.received[1].json == {"model": "gpt-4o", "messages": HELLO, "max_tokens": 5}


# --- streams ---


@pytest.mark.parametrize("asks", [False, True])
async def test_stream(proxy: Proxy, upstream: ScriptedUpstream, asks: bool) -> None:
    upstream.default = sse_answer(STREAM)
    options: Any = {"stream_options": {"include_usage": True}} if asks else {}

    def ask() -> list[Any]:
        with (
            blocking(proxy) as client,
            client.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True, **options) as stream,
        ):
            return list(stream)

    chunks = await asyncio.to_thread(ask)
    async with (
        concurrent(proxy) as client,
        await client.chat.completions.create(
            model="gpt-4o", messages=HELLO, stream=True, **options
        ) as stream,
    ):
        assert [chunk async for chunk in stream] == chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    usages = [chunk.usage.total_tokens for chunk in chunks if chunk.usage]
    assert usages == ([11] if asks else [])
    # Asked for in either case: the proxy counts with it. The client sees it only if it asked.
    assert all(request.json["stream_options"] == {"include_usage": True} for request in upstream.received)


async def test_an_error_in_mid_stream_is_an_error_of_the_sdk(
    proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.then(sse_answer([delta("Hel")], end=False))
    parts: list[str] = []

    async def read() -> None:
        async with concurrent(proxy) as client:
            stream = await client.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True)
            async for chunk in stream:
                assert chunk.choices
                parts.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="closed the connection") as caught:
        await read()
    assert parts == ["Hel"]
    assert caught.value.code == "upstream_error"


# --- tools ---


async def test_a_round_with_tools(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.then(json_answer(CALL), json_answer(completion("It is sunny.")))
    messages: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
    async with concurrent(proxy) as client:
        first = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL])
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": '{"sky":"clear"}'},
        ]
        second = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "It is sunny."
    assert upstream.received[1].json["messages"] == messages


# --- models ---


async def test_list_models(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.default = json_answer(MODELS)

    def ask() -> list[str]:
        with blocking(proxy) as client:
            return [model.id for model in client.models.list()]

    assert await asyncio.to_thread(ask) == ["gpt-4o", "gpt-4o-mini"]
    async with concurrent(proxy) as client:
        assert [model.id async for model in client.models.list()] == ["gpt-4o", "gpt-4o-mini"]


# --- errors ---


async def hang_up(_: Received, peer: Peer) -> None:
    peer.reset()


async def say_nothing(_: Received, peer: Peer) -> None:
    await peer.wait_gone()
    peer.keep_open = False


LONG = "word " * 3000


@pytest.mark.parametrize(
    ("answer", "content", "error", "status", "code"),
    [
        # The upstream's own, verbatim.
        (refused(400, "invalid_value"), "hi", openai.BadRequestError, 400, "invalid_value"),
        (refused(401, "invalid_api_key"), "hi", openai.AuthenticationError, 401, "invalid_api_key"),
        (refused(403, "unsupported_country"), "hi", openai.PermissionDeniedError, 403, "unsupported_country"),
        (refused(404, "model_not_found"), "hi", openai.NotFoundError, 404, "model_not_found"),
        (refused(409, "conflict"), "hi", openai.ConflictError, 409, "conflict"),
        (refused(422, "odd"), "hi", openai.UnprocessableEntityError, 422, "odd"),
        (refused(429, "rate_limit_exceeded"), "hi", openai.RateLimitError, 429, "rate_limit_exceeded"),
        (refused(500, "server_error"), "hi", openai.InternalServerError, 500, "server_error"),
        (refused(503, "overloaded"), "hi", openai.InternalServerError, 503, "overloaded"),
        # Ours.
        (None, 5, openai.BadRequestError, 400, "invalid_request"),
        (None, LONG, openai.UnprocessableEntityError, 422, "context_length_exceeded"),
        (hang_up, "hi", openai.InternalServerError, 502, "upstream_error"),
        (bytes_answer(b"", "text/html", 502), "hi", openai.InternalServerError, 502, None),
        (say_nothing, "hi", openai.InternalServerError, 504, "upstream_timeout"),
    ],
)
async def test_every_error_is_of_the_class_that_clients_catch(
    proxy: Proxy,
    upstream: ScriptedUpstream,
    answer: Answer | None,
    content: Any,
    error: type[openai.APIStatusError],
    status: int,
    code: str | None,
) -> None:
    if answer is not None:
        upstream.then(answer, answer)
    messages: list[Any] = [{"role": "user", "content": content}]

    def ask() -> None:
        with blocking(proxy) as client:
            client.chat.completions.create(model="gpt-4o", messages=messages)

    with pytest.raises(error) as caught:
        await asyncio.to_thread(ask)
    assert type(caught.value) is error
    assert (caught.value.status_code, caught.value.code) == (status, code)
    with pytest.raises(error) as again:
        async with concurrent(proxy) as client:
            await client.chat.completions.create(model="gpt-4o", messages=messages, stream=True)
    assert (again.value.status_code, again.value.code) == (status, code)
    assert again.value.response.headers["x-request-id"]
    if answer is None:
        assert upstream.received == []


async def test_the_fuse_says_what_clients_look_for(proxy: Proxy) -> None:
    async with concurrent(proxy) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="maximum context length is 2000") as caught:
            await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": LONG}])
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param == "messages"


async def test_a_caller_of_ours_that_may_not(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    callers = '[[callers]]\nname = "c"\nkey = "env:CALLER"\nmodels = ["gpt-4o-mini"]'
    proxy = await start_proxy(
        openai_config(upstream.base_url, callers, backend='auth = "none"'), {"CALLER": "sk-client"}
    )
    async with concurrent(proxy) as client:
        with pytest.raises(openai.PermissionDeniedError) as denied:
            await client.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert denied.value.code == "model_not_allowed"
        with pytest.raises(openai.AuthenticationError) as unknown:
            await client.with_options(api_key="sk-other").models.list()
        assert unknown.value.code == "invalid_api_key"
