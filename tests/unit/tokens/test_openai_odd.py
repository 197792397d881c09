"""Odd bodies are counted, with a reason to doubt, and never raise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.openai import family, message_weights, prompt_costs
from tests.unit.tokens.test_openai import calls, result, schema, user
from tests.unit.tokens.test_openai_truth import counted

ODD = {
    "an unknown role": [{"role": "critic", "content": "Hi"}],
    "no role": [{"content": "Hi"}],
    "a message that is text": ["Hi"],
    "content that is a number": [user(7)],
    "content that is an object": [user({"a": 1})],
    "parts of unknown type": [user([{"type": "hologram", "text": "Hi"}, 4, None, "Hi"])],
    "a name that is a number": [user("Hi") | {"name": 3}],
    "calls that are text": [{"role": "assistant", "tool_calls": "now"}],
    "calls that are null": [{"role": "assistant", "tool_calls": [None, {"function": 3}]}],
    "a result without its call": [result(0, "noon")],
    "a call without its result": [calls(("now", "{}")), user("Hi")],
    "another call's result": [calls(("now", "{}")), result(5, "noon")],
    "arguments that are no JSON": [calls(("now", "{")), result(0, "noon")],
    "a remote image": [user([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])],
    "a broken image": [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])],
    "a file": [user([{"type": "file", "file": {"file_id": "f"}}])],
    "sound": [user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}])],
}


@pytest.mark.parametrize("messages", ODD.values(), ids=ODD)
def test_odd_messages_are_counted_with_a_reason_to_doubt(messages: list[Any]) -> None:
    for model in ("gpt-4o", "gpt-5", "gpt-3.5-turbo-0301", "someone/else"):
        tokens, unsure = counted({"messages": messages}, model)
        assert tokens >= family(model).reply_tokens
        assert unsure


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "Hi"},
        {"messages": [user("Hi")], "prediction": {"type": "content", "content": "x"}},
        {"messages": [user("Hi")], "modalities": ["text", "audio"]},
        {"messages": [user("Hi")], "tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"messages": [user("Hi")], "tools": [{"type": "function", "function": {"name": 4}}]},
        {"messages": [user("Hi")], "tools": ["now", None]},
        {"messages": [user("Hi")], "functions": [{"name": "now"}]},
    ],
)
def test_what_cannot_be_known_is_doubted(body: dict[str, Any]) -> None:
    assert counted(body, "gpt-4o")[1]


def test_an_unknown_model_is_counted_like_gpt_4o_and_doubted() -> None:
    tokens, unsure = counted({"messages": [user("Hi")]}, "claude-sonnet-4")
    assert (tokens, unsure) == (8, ("unknown model, counted like gpt-4o",))


def test_no_reason_holds_text_of_a_message() -> None:
    secret = "xyzzy"
    for messages in ODD.values():
        odd = json.loads(
            json.dumps(messages).replace("Hi", secret).replace("noon", secret).replace("critic", secret)
        )
        assert secret not in str(counted({"messages": odd}, "gpt-4o")[1])


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {"$ref": "#/$defs/node"}
    parameters = {
        "type": "object",
        "properties": {"tree": node},
        "$defs": {"node": {"type": "object", "properties": {"left": node, "right": node}}},
    }
    body = {
        "messages": [],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
    }
    assert "a recursive tool schema" in counted(body, "gpt-4o")[1]


def test_a_schema_that_doubles_at_every_level_ends() -> None:
    levels = {
        f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(40)
    }
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": levels}
    body = {
        "messages": [],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
    }
    assert "a tool schema too deep to render" in counted(body, "gpt-4o")[1]


KEYS = [
    *("type", "text", "name", "content", "role", "function", "arguments", "id", "tool_calls", "tool_call_id"),
    *("parameters", "properties", "enum", "items", "anyOf", "$ref", "required", "default", "description"),
    *("title", "image_url", "url", "schema", "json_schema"),
]
MESSAGE_KEYS = ("content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio")
BODY_KEYS = (
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "response_format",
    "modalities",
    "prediction",
)

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
odd_messages = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "function", "x"])},
        optional=dict.fromkeys(MESSAGE_KEYS, json_values),
    ),
)


@given(
    st.fixed_dictionaries(
        {"messages": st.one_of(st.lists(odd_messages, max_size=4), json_values)},
        optional=dict.fromkeys(BODY_KEYS, json_values),
    ),
    st.sampled_from(["gpt-4o", "gpt-5-mini", "gpt-4", "o3-mini", "gpt-4o-2024-08-06", ""]),
)
@settings(max_examples=600, deadline=None)
def test_no_body_raises(body: dict[str, Any], model: str) -> None:
    costs = prompt_costs(body, family(model))
    messages = body["messages"] if isinstance(body["messages"], list) else []
    assert len(costs.messages) == len(messages)
    assert len(message_weights(messages, family(model))) == len(messages)


@pytest.mark.parametrize("key", ["properties", "items", "anyOf", "enum", "default", "const", "$ref", "allOf"])
@pytest.mark.parametrize("depth", [50, 900, 5000])
def test_no_depth_of_schema_raises(key: str, depth: int) -> None:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner: Any = (
            {"a": nested} if key == "properties" else [nested] if key in ("anyOf", "enum") else nested
        )
        nested = {"type": "array" if key == "items" else "object", key: inner}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": nested}}}
    body = {
        "messages": [user(nested)],
        "tools": [{"type": "function", "function": function}],
        "response_format": schema("out", schema=nested),
    }
    prompt_costs(body, family("gpt-4o"))


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 900 + "]" * 900, "1" * 100_000, "NaN"])
def test_no_arguments_or_results_raise(text: str) -> None:
    for turn in (
        [calls(("f", text)), result(0, text)],
        [calls(("f", text), ("f", text)), result(0, text), result(1, text)],
    ):
        prompt_costs({"messages": turn}, family("gpt-4o"))
