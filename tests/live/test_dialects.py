"""All dialects on real engines, with the official SDKs: answers, and counts that are the engine's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from openai.types.responses import ResponseCompletedEvent

from proxy.dialects.paths import DIALECTS
from tests.proxy_fixture import Proxy

MODEL = "smollm2"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "The weather in a city", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "weather", "description": "Of a city", "parameters": SCHEMA}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Rain, 7 °C"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Look it up."}],
}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain, 7 °C"}

COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "The capital of France is"},
    {"prompt": "Grüße aus Köln 🌍 漢字\n\n"},
    {"prompt": [504, 3575, 282, 4649, 314]},
    {"prompt": ["One, two,", "Red, green,"]},
    {"prompt": [[504, 3575], [282, 4649, 314]]},
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "Name the capital of France."},
    {"input": "Name it.", "instructions": "You know of France only."},
    {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    {
        "input": [
            {"role": "user", "content": "Hi"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hello!", "annotations": []}],
            },
            {"role": "user", "content": "And now?"},
        ]
    },
]
WITH_TOOLS: list[dict[str, Any]] = [
    {"input": "How is the weather?", "tools": [FUNCTION]},
    {"input": [{"role": "user", "content": "Weather?"}, CALL, OUTPUT], "tools": [FUNCTION]},
    {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Weather?"},
            REASONING,
            CALL,
            {**CALL, "call_id": "c2", "arguments": '{"city":"Paris"}'},
            OUTPUT,
            {**OUTPUT, "call_id": "c2", "output": "Sun"},
            {"role": "assistant", "content": "Rain in Köln."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [{**FUNCTION, "strict": True}],
        "tool_choice": "none",
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Name the capital of France."}]},
    {"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief."},
    {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "system": [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": " And kind."},
        ],
    },
    {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]},
            {"role": "user", "content": [{"type": "text", "text": "Well"}, {"type": "text", "text": "so?"}]},
        ]
    },
]
WITH_TOOL_USE: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "How is the weather?"}], "tools": [TOOL]},
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look it up.", "signature": "x"},
                    {"type": "text", "text": "A moment."},
                    USE,
                    {**USE, "id": "t2", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    RESULT,
                    {**RESULT, "tool_use_id": "t2", "content": [{"type": "text", "text": "Sun"}]},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
    },
]


async def counts(proxy: Proxy, path: str, body: Mapping[str, Any], cap: str) -> tuple[int, int]:
    """Tokens of the prompt as we count them, and as the engine reports them."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(proxy.url + path, json={"model": MODEL, cap: 4, **body}) as answer,
    ):
        reply = await answer.json()
        assert answer.status == 200, reply
    usage = DIALECTS[path].usage(reply)
    assert usage is not None
    assert usage.prompt is not None
    return int(answer.headers["x-chatfuse-tokens-in"]), usage.prompt


async def differences(proxy: Proxy, path: str, bodies: list[dict[str, Any]], cap: str) -> list[int]:
    found = [await counts(proxy, path, body, cap) for body in bodies]
    return [ours - theirs for ours, theirs in found]


# --- a real vLLM ---


@pytest.mark.parametrize(
    ("path", "bodies", "cap"),
    [
        ("/v1/completions", COMPLETIONS, "max_tokens"),
        ("/v1/responses", RESPONSES + WITH_TOOLS, "max_output_tokens"),
        ("/v1/messages", MESSAGES + WITH_TOOL_USE, "max_tokens"),
    ],
)
async def test_vllm_counts_every_prompt_as_we_do(
    vllm_proxy: Proxy, path: str, bodies: list[dict[str, Any]], cap: str
) -> None:
    assert await differences(vllm_proxy, path, bodies, cap) == [0] * len(bodies)


async def test_the_sdks_stream_from_vllm(vllm_proxy: Proxy) -> None:
    await sdks_stream(vllm_proxy)


async def test_tokens_are_counted_by_vllm_when_a_client_asks(vllm_proxy: Proxy) -> None:
    async with anthropic.AsyncAnthropic(base_url=vllm_proxy.url, api_key="unused", max_retries=0) as client:
        counted = await client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
    assert counted.input_tokens > 0


# --- the embedded llama.cpp ---


@pytest.mark.parametrize(
    ("path", "bodies", "cap"),
    [
        ("/v1/completions", COMPLETIONS[:3], "max_tokens"),
        ("/v1/responses", RESPONSES, "max_output_tokens"),
        ("/v1/messages", MESSAGES[:3], "max_tokens"),
    ],
)
async def test_llama_cpp_counts_every_prompt_as_we_do(
    smollm: Proxy, path: str, bodies: list[dict[str, Any]], cap: str
) -> None:
    assert await differences(smollm, path, bodies, cap) == [0] * len(bodies)


async def test_the_sdks_stream_from_llama_cpp(smollm: Proxy) -> None:
    await sdks_stream(smollm)


async def sdks_stream(proxy: Proxy) -> None:
    """Each path with its own SDK; the account knows what came out."""
    written = 'chatfuse_tokens_total{kind="completion",model="smollm2"}'
    async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key="unused", max_retries=0) as client:
        plain = await client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
        )
        assert "Paris" in "".join([chunk.choices[0].text async for chunk in plain if chunk.choices])
        one = (await proxy.metrics())[written]
        assert one > 0
        events = await client.responses.create(
            model=MODEL,
            input="Name the capital city of France.",
            max_output_tokens=20,
            temperature=0,
            stream=True,
        )
        last = [event async for event in events][-1]
        assert isinstance(last, ResponseCompletedEvent)
        assert "Paris" in last.response.output_text
        assert last.response.usage is not None
        two = (await proxy.metrics())[written]
        assert two == one + last.response.usage.output_tokens
    async with (
        anthropic.AsyncAnthropic(base_url=proxy.url, api_key="unused", max_retries=0) as anthropics,
        anthropics.messages.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Name the capital city of France."}],
            max_tokens=20,
            extra_body={"temperature": 0},
        ) as stream,
    ):
        message = await stream.get_final_message()
    assert message.content[0].type == "text"
    assert "Paris" in message.content[0].text
    assert (await proxy.metrics())[written] == two + message.usage.output_tokens
