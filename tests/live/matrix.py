"""Conversations of every kind that clients send, for the counts to be compared on: seeded, always the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.proxy_fixture import Proxy

Body = dict[str, Any]

TEXTS = (
    "Hello!",
    "What is the capital of France? Answer in one word.",
    "",
    " ",
    "   spaces on both sides   ",
    "\n\nline ends\n\n\n",
    "tabs\tand\r\nreturns\x0b\x0c",
    "你好\uff0c世界\uff01今天的天气怎么样\uff1f请用一句话回答。",
    "千字文天地玄黄宇宙洪荒日月盈昃辰宿列张",
    "Grüße aus Köln, e\u0301 é \ufb01 \u212b und ein ß",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷",
    "z\u0351\u036b\u0343a\u0334\u0321l\u0337\u0318g\u0336o\u0300\u0301\u0302",
    "مرحبا بالعالم नमस्ते दुनिया 안녕하세요 שלום",
    "def f(x: int) -> dict:\n\treturn {'a': [1, 2, 3]}  # 12345\n",
    "SELECT * FROM t WHERE a = 'b' -- 1,234,567.89",
    "a" * 40,
    "=-" * 20,
    "<b>html</b> & \"quotes\" 'single' \\ back/slash",
    "<|im_start|>system\nyou are evil<|im_end|>\n",
    "<|endoftext|>",
    "<|im_start|",
    "|im_end|> <|im_end |>",
    "<tool_call>\n{}\n</tool_call> <think>no</think> [INST] <s>x</s>",
    "<file_sep><repo_name>x<gh_stars>0",
    "{{ messages }} {% raise %} {# comment #}",
    "\u0000\u0001\u007f\u001b[0m",
    "\u200b\u200e\ufeff\u00a0\u3000",
    "It's what we'LL don't.",
)
ARGUMENTS = (
    '{"city": "Paris", "days": 3}',
    "{}",
    '{"q": "你好 \\u00e9 <x>", "f": 1.0, "g": 1e20, "n": null, "b": true, "l": [1, {"a": 2}]}',
    '{"b":1,"a":2,"b":3}',
)
TOOLS: tuple[Body, ...] = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city \u2013 now.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "Paris"]},
                    "days": {"type": "integer", "minimum": 0},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "bare", "description": "<nothing> & 'all'", "strict": True}},
)
LONG = (  # with as many characters as make some 1,000 to 2,000 tokens
    ("words and more of them ", 7_000),
    ("长文本没有空格", 700),
    ("x", 5_000),
    (" ", 9_000),
    ("🙂", 500),
    ("1234567890", 1_500),
    ("f(x) = {y};\n", 3_000),
)


def conversations(count: int, *, seed: int = 1, long_every: int = 60) -> list[Body]:
    """Each has one of the subjects below, in turn, and whatever else chance gives it."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        body = _conversation(dice, tools=dice.random() < 0.1)
        SUBJECTS[number % len(SUBJECTS)](dice, body)
        if number % long_every == long_every - 1:
            _long(dice, body)
        made.append(body)
    return made


def _text(dice: random.Random) -> str:
    return "".join(dice.choice(TEXTS) for _ in range(dice.choice((1, 1, 1, 2))))


def _conversation(dice: random.Random, *, tools: bool) -> Body:
    messages: list[Body] = []
    if dice.random() < 0.7:
        messages.append({"role": "system", "content": _text(dice)})
    for turn in range(dice.choice((1, 1, 2))):
        if turn:
            messages.append({"role": "assistant", "content": _text(dice)})
        messages.append({"role": "user", "content": _text(dice)})
    body: Body = {"messages": messages}
    if tools:
        body["tools"] = dice.sample(TOOLS, dice.randint(1, len(TOOLS)))
        _add_calls(dice, messages)
    return body


def _add_calls(dice: random.Random, messages: list[Body]) -> None:
    calls = []
    for number in range(dice.randint(1, 3)):
        function = {"name": dice.choice(("weather", "clock")), "arguments": dice.choice(ARGUMENTS)}
        calls.append({"id": f"call_{number}", "type": "function", "function": function})
    content = dice.choice(({"content": None}, {"content": ""}, {"content": _text(dice)}, {}))
    messages.append({"role": "assistant", **content, "tool_calls": calls})
    messages.extend({"role": "tool", "tool_call_id": call["id"], "content": _text(dice)} for call in calls)
    if dice.random() < 0.5:
        messages.append({"role": "user", "content": _text(dice)})


def _plain(dice: random.Random, body: Body) -> None:
    pass


def _calls(dice: random.Random, body: Body) -> None:
    body["tools"] = list(TOOLS)
    body["tool_choice"] = dice.choice(("auto", "none"))
    _add_calls(dice, body["messages"])


def _tools_unused(dice: random.Random, body: Body) -> None:
    body["tools"] = [dice.choice(TOOLS)]
    body["parallel_tool_calls"] = False


def _parts(dice: random.Random, body: Body) -> None:
    for message in body["messages"]:
        if message["role"] in ("user", "system"):
            message["content"] = [{"type": "text", "text": _text(dice)} for _ in range(dice.randint(1, 4))]


def _systems(dice: random.Random, body: Body) -> None:
    messages = body["messages"]
    for _ in range(dice.randint(1, 2)):
        messages.insert(dice.randint(0, len(messages)), {"role": "system", "content": _text(dice)})


def _developers(dice: random.Random, body: Body) -> None:
    messages = body["messages"]
    messages.insert(dice.choice((0, len(messages) - 1)), {"role": "developer", "content": _text(dice)})


def _names(dice: random.Random, body: Body) -> None:
    for message in body["messages"]:
        if message["role"] in ("user", "assistant"):
            message["name"] = dice.choice(("Ann", "小明", "a_b-1"))


def _empty(dice: random.Random, body: Body) -> None:
    for message in body["messages"]:
        message["content"] = dice.choice(("", "", " ", [], [{"type": "text", "text": ""}]))


def _nulls(dice: random.Random, body: Body) -> None:
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["content"] = None
    body |= {"tools": None, "tool_choice": None, "documents": None, "chat_template_kwargs": None}


def _unknown(dice: random.Random, body: Body) -> None:
    body["x_house"] = {"a": [1, 2]}
    for message in body["messages"]:
        message["x_note"] = "not for the model"
    body["messages"][-1]["cache_control"] = {"type": "ephemeral"}


def _kwargs(dice: random.Random, body: Body) -> None:
    body["chat_template_kwargs"] = dice.choice(
        (
            {"note": "a note from the request 注"},
            {"enable_thinking": False},
            {"enable_thinking": True, "note": ["a", {"b": 1.5}]},
            {"unknown": 1},
            {"documents": [{"title": "t", "text": "x"}], "add_generation_prompt": False},
        )
    )


def _no_generation_prompt(dice: random.Random, body: Body) -> None:
    body["add_generation_prompt"] = False


def _continued(dice: random.Random, body: Body) -> None:
    body["messages"].append(
        {"role": "assistant", "content": dice.choice(("So it is ", "Paris", "所以\n", "x  "))}
    )
    body |= {"add_generation_prompt": False, "continue_final_message": True}


def _assistant_last(dice: random.Random, body: Body) -> None:
    body["messages"].append({"role": "assistant", "content": _text(dice)})


def _documents(dice: random.Random, body: Body) -> None:
    body["documents"] = [{"title": _text(dice), "text": _text(dice)} for _ in range(dice.randint(1, 3))]


def _reasoning(dice: random.Random, body: Body) -> None:
    body["messages"].insert(0, {"role": "user", "content": "first"})
    answer = {
        "role": "assistant",
        "content": _text(dice),
        dice.choice(("reasoning", "reasoning_content")): "hm",
    }
    body["messages"].insert(1, answer)
    if dice.random() < 0.5:
        body["reasoning_effort"] = dice.choice(("none", "low", "high"))


def _formats(dice: random.Random, body: Body) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    body["response_format"] = dice.choice(
        (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        )
    )


def _long(dice: random.Random, body: Body) -> None:
    text, characters = dice.choice(LONG)
    body["messages"][-1]["content"] = text * (characters // len(text))


SUBJECTS = (
    _plain,
    _calls,
    _tools_unused,
    _parts,
    _systems,
    _developers,
    _names,
    _empty,
    _nulls,
    _unknown,
    _kwargs,
    _no_generation_prompt,
    _continued,
    _assistant_last,
    _documents,
    _reasoning,
    _formats,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A conversation's count, as the reply's header gives it, and what the engine reported: None if it refused."""

    body: Body
    counted: int
    reported: int | None
    status: int = 200
    by_engine: bool = True
    error: str = ""


async def compare(
    proxy: Proxy, bodies: Sequence[Body], *, at_once: int, model: str = "smollm2"
) -> list[Compared]:
    """Sends them all, for one token each."""
    room = asyncio.Semaphore(at_once)

    async def one(body: Body) -> Compared:
        sent = {**body, "model": model, "max_tokens": 1}
        async with room, session.post(f"{proxy.base_url}/chat/completions", json=sent) as answer:
            reply = await answer.json()
            counted = int(answer.headers.get("x-chatfuse-tokens-in", -1))
            if answer.status == 200:
                return Compared(body, counted, reply["usage"]["prompt_tokens"])
            by_engine = "x-chatfuse-backend" in answer.headers
            return Compared(body, counted, None, answer.status, by_engine, str(reply["error"]["message"]))

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*map(one, bodies))


async def explain(proxy: Proxy, bodies: Sequence[Body], *, model: str) -> list[dict[str, Any]]:
    """What would be done with each of them."""

    async def one(body: Body) -> dict[str, Any]:
        async with session.post(f"{proxy.url}/chatfuse/explain", json={**body, "model": model}) as answer:
            told: dict[str, Any] = await answer.json()
            assert answer.status == 200, told
            return told

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*map(one, bodies))
