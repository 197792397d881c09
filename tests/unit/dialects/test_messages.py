"""Anthropic's requests: messages as chat messages, what belongs together, and errors in Anthropic's shape."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Edits, Place, Prompt, Usage
from proxy.errors import FuseTripped, Internal, InvalidApiKey, NotFound, Overloaded, ProxyError, TooLarge

USER = {"role": "user", "content": "u"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(id_: str = "1") -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {"a": 1}}


def result(id_: str = "1", content: Any = "o") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def read(*messages: Any, **fields: Any) -> Prompt:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages) or [USER], **fields}
    return MESSAGES.parse(json.dumps(body).encode())


def test_the_system_prompt_comes_first_and_from_no_message() -> None:
    prompt = read(USER, system=[text("a"), {**text("b"), "cache_control": {"type": "ephemeral"}}])
    assert prompt.messages == [{"role": "system", "content": "ab"}, USER]
    assert prompt.origin == [range(0), range(1)]
    assert read(USER, system="").messages == [USER]


def test_claude_codes_billing_block_is_left_out_as_vllm_does() -> None:
    billing = text("x-anthropic-billing-header: cc_version=1")
    assert read(USER, system=[billing, text("b")]).messages[0]["content"] == "b"


def test_blocks_become_one_message() -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    prompt = read({"role": "assistant", "content": [thinking, text("a"), use("1"), use("2")]})
    calls = [
        {"id": id_, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for id_ in "12"
    ]
    assert prompt.messages == [{"role": "assistant", "reasoning": "t", "tool_calls": calls, "content": "a"}]


def test_tool_results_are_messages_of_their_own_from_one_item() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    prompt = read(
        {"role": "assistant", "content": [use("1"), use("2")]},
        {"role": "user", "content": [result("1"), result("2", [text("a"), text("b"), image]), text("so?")]},
    )
    seen = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert prompt.messages[1:] == [
        {"role": "tool", "tool_call_id": "1", "content": "o"},
        {"role": "tool", "tool_call_id": "2", "content": "a\nb"},
        {"role": "user", "content": [seen]},
        {"role": "user", "content": "so?"},
    ]
    assert prompt.origin == [range(1), *[range(1, 2)] * 4]
    assert list(MESSAGES.tool_outputs(prompt)) == [
        (Place(1, ("content", 0, "content")), "o"),
        (Place(1, ("content", 1, "content", 0, "text")), "a"),
        (Place(1, ("content", 1, "content", 1, "text")), "b"),
    ]


def test_a_message_with_nothing_to_show_goes_with_the_next() -> None:
    assert read({"role": "user", "content": []}, USER).origin == [range(2)]
    assert read(USER, {"role": "user", "content": []}).origin == [range(2)]


def test_options_get_the_names_that_chat_has() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"properties": {}}}
    chat = read(
        tools=[tool],
        tool_choice={"type": "any"},
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": {"a": 1}}},
    ).chat
    parameters = {"properties": {}, "type": "object"}
    function = {"name": "f", "description": "d", "parameters": parameters}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert (chat["tool_choice"], chat["reasoning_effort"]) == ("required", "none")
    assert chat["response_format"]["json_schema"]["schema"] == {"a": 1}


@pytest.mark.parametrize(
    ("block", "counted", "reason"),
    [
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
            "words",
            "blocks of type document",
        ),
        (
            {"type": "search_result", "source": "https://x", "title": "T", "content": [text("found")]},
            "found",
            "blocks of type search_result",
        ),
        ({"type": "from_tomorrow", "new": "thing"}, "thing", "blocks of type from_tomorrow"),
    ],
)
def test_other_blocks_are_counted_as_far_as_they_are_text(
    block: dict[str, Any], counted: str, reason: str
) -> None:
    prompt = read({"role": "user", "content": [block]})
    assert counted in prompt.messages[0]["content"]
    assert prompt.unsure == (reason,)


@pytest.mark.parametrize(
    ("asked", "budget", "cap", "sent"),
    [
        (10_000, 8000, 5000, 4000),  # the same share
        (10_000, 4000, 5000, 4000),  # below the cap as it is
        (9000, 8999, 2000, 1999),
        (8000, 2000, 1500, 1024),  # the least there is
        (8000, 2000, 1024, 2000),  # no budget fits: the upstream says so
    ],
)
def test_a_lowered_cap_lowers_the_budget_for_thinking(asked: int, budget: int, cap: int, sent: int) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    prompt = read(USER, max_tokens=asked, thinking=thinking)
    out = MESSAGES.encode(prompt, Edits(caps={"max_tokens": cap}))
    assert json.loads(out) == {
        **prompt.fields,
        "max_tokens": cap,
        "thinking": {**thinking, "budget_tokens": sent},
    }


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        (
            {
                "usage": {
                    "input_tokens": 5,
                    "cache_creation_input_tokens": 3,
                    "cache_read_input_tokens": 4,
                    "output_tokens": 2,
                }
            },
            Usage(12, 2, 4),
        ),
        (
            {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
            Usage(5, 1),
        ),
        ({"type": "message_delta", "usage": {"output_tokens": 2}}, Usage(None, 2)),
        ({"type": "ping"}, None),
        ("usage", None),
    ],
)
def test_usage(value: Any, usage: Usage | None) -> None:
    assert MESSAGES.usage(value) == usage


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidApiKey("no"), "authentication_error"),
        (NotFound("no"), "not_found_error"),
        (TooLarge("no"), "request_too_large"),
        (FuseTripped(tokens=2, complete=True, limit=1, what="the fuse"), "invalid_request_error"),
        (Overloaded("no"), "overloaded_error"),
        (Overloaded("no", status=429), "rate_limit_error"),
        (Internal("no"), "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: ProxyError, kind: str) -> None:
    body = MESSAGES.error_body(error)
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": error.message}}
    assert MESSAGES.error_event(body) == b"event: error\ndata: " + body + b"\n\n"
