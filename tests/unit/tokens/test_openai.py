"""What requests cost by OpenAI's rules, worked out by hand from shared/facts/tokens.md."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.encodings import encoding
from proxy.tokens.openai import family, message_weights, prompt_costs
from tests.unit.tokens.test_openai_truth import counted, png


def o200k(text: str) -> int:
    return len(encoding("o200k_base").encode(text, disallowed_special=()))


def cl100k(text: str) -> int:
    return len(encoding("cl100k_base").encode(text, disallowed_special=()))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def tool(name: str, description: str | None = None, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def calls(*named: tuple[str, str], **more: Any) -> dict[str, Any]:
    listed = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed, **more}


def result(number: int, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def schema(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, **more}}


def block(*tools: str) -> str:
    return (
        "# Tools\n\n## functions\n\nnamespace functions {\n\n" + "".join(tools) + "} // namespace functions"
    )


NOW = "type now = () => any;\n\n"
CITY = {"type": "string"}
FORECAST = tool("forecast", "Weather.", city=CITY)
FORECAST_TEXT = "// Weather.\ntype forecast = (_: { city: string }) => any;\n\n"
HI = 4 + 1  # a message around one token

CASES = {
    "one word": ("gpt-4o", {"messages": [user("Hi")]}, 3 + HI),
    "one word, old encoding": ("gpt-4", {"messages": [user("Hi")]}, 3 + HI),
    "a reasoning model's reply header is shorter": ("o3-mini", {"messages": [user("Hi")]}, 2 + HI),
    "developer costs as system": (
        "gpt-4o",
        {"messages": [{"role": "developer", "content": "Hi"}, user("Hi")]},
        3 + HI + HI,
    ),
    "nothing at all": ("gpt-4o", {"messages": []}, 3),
    "empty content": ("gpt-4o", {"messages": [user("")]}, 3 + 4),
    "text parts are joined without a separator": (
        "gpt-4o",
        {"messages": [user([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])]},
        3 + 4 + o200k("Hello"),
    ),
    "special tokens are plain text": (
        "gpt-4o",
        {"messages": [user("<|endoftext|>")]},
        3 + 4 + o200k("<|endoftext|>"),
    ),
    "a name counts with its colon": ("gpt-4o", {"messages": [user("Hi") | {"name": "user"}]}, 3 + HI + 1),
    "a longer name": ("gpt-4o", {"messages": [user("Hi") | {"name": "primary"}]}, 3 + HI + 2),
    "a name on an old model": (
        "gpt-4",
        {"messages": [user("Hi") | {"name": "primary"}]},
        3 + HI + 1 + cl100k("primary"),
    ),
    "an earlier answer": (
        "gpt-4o",
        {"messages": [user("Hi"), {"role": "assistant", "content": "Hi"}, user("Hi")]},
        3 + 3 * HI,
    ),
    "an earlier answer of gpt-5 names its channel": (
        "gpt-5",
        {"messages": [user("Hi"), {"role": "assistant", "content": "Hi"}, user("Hi")]},
        2 + 3 * HI + 2,
    ),
    "json mode is free": (
        "gpt-4o",
        {"messages": [user("Hi")], "response_format": {"type": "json_object"}, "seed": 1, "temperature": 0},
        3 + HI,
    ),
    "effort is free": ("gpt-5", {"messages": [user("Hi")], "reasoning_effort": "high"}, 2 + HI),
    "a tool without a system message makes one": (
        "gpt-4o",
        {"messages": [user("Hi")], "tools": [tool("now")]},
        3 + HI + 4 + o200k(block(NOW)) - 1,
    ),
    "a tool joins the system message": (
        "gpt-4o",
        {"messages": [system("Be brief"), user("Hi")], "tools": [FORECAST]},
        3 + HI + 4 + o200k("Be brief\n\n" + block(FORECAST_TEXT)) - 1,
    ),
    "a described property has its line": (
        "gpt-4o",
        {"messages": [user("Hi")], "tools": [tool("f", None, city={"type": "string", "description": "Where"})]},
        3 + HI + 4 - 1 + o200k(block("type f = (_: {\n// Where\ncity: string,\n}) => any;\n\n")),
    ),
    "descriptions lose their empty lines": (
        "gpt-4o",
        {"messages": [user("Hi")], "tools": [tool("now", "One\n\n  Two  ")]},
        3 + HI + 4 - 1 + o200k(block("// One\n// Two\n" + NOW)),
    ),
    "enums, arrays, defaults and titles": (
        "gpt-4o",
        {
            "messages": [user("Hi")],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {
                            "type": "object",
                            "properties": {
                                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                                "days": {"type": "array", "items": {"type": "integer"}},
                                "place": {"type": "string", "title": "Place", "description": "Where"},
                                "note": {"type": "string", "default": "none"},
                            },
                            "required": ["days"],
                        },
                    },
                }
            ],
        },
        3 + HI + 4 - 1
        + o200k(
            block(
                'type f = (_: {\nunit?: "C" | "F", // default: C\ndays: number[],\n// Place\n//\n// Where\n'
                'place?: string,\nnote?: string, // default: "none"\n}) => any;\n\n'
            )
        ),
    ),
    "tool_choice auto is free": (
        "gpt-4o",
        {"messages": [user("Hi")], "tools": [tool("now")], "tool_choice": "auto"},
        3 + HI + 4 + o200k(block(NOW)) - 1,
    ),
    "tool_choice none costs one": (
        "gpt-4o",
        {"messages": [user("Hi")], "tools": [tool("now")], "tool_choice": "none"},
        3 + HI + 4 + o200k(block(NOW)) - 1 + 1,
    ),
    "a named tool costs its name and seven": (
        "gpt-4o",
        {
            "messages": [user("Hi")],
            "tools": [tool("now")],
            "tool_choice": {"type": "function", "function": {"name": "now"}},
        },
        3 + HI + 4 + o200k(block(NOW)) - 1 + 1 + 7,
    ),
    "a reasoning model's tools stand alone": (
        "o3-mini",
        {"messages": [system("Hi"), user("Hi")], "tools": [FORECAST]},
        2 + 2 * HI + 4 + o200k(block(FORECAST_TEXT)),
    ),
    "gpt-5 adds hidden text to tools": (
        "gpt-5",
        {"messages": [user("Hi")], "tools": [FORECAST]},
        2 + HI + 4 + o200k(block(FORECAST_TEXT)) + 81,
    ),
    "one call and its result": (
        "gpt-4o",
        {"messages": [calls(("now", '{ "a": 1 }')), result(0, "noon")]},
        3 + 3 + 1 + 1 + 3 + o200k('{"a":1}') + 3 + o200k("functions.now") + 2 + o200k("noon"),
    ),
    "text beside a call is a message of its own": (
        "gpt-4o",
        {"messages": [calls(("now", "{}"), content="Hi"), result(0, "noon")]},
        3 + HI + 3 + 1 + 1 + 3 + o200k("{}") + 3 + o200k("functions.now") + 2 + o200k("noon"),
    ),
    "a call turn of gpt-5 costs six more": (
        "gpt-5",
        {"messages": [calls(("now", "{}")), result(0, "noon")]},
        2 + 3 + 1 + 1 + 3 + o200k("{}") + 6 + 3 + o200k("functions.now") + 2 + o200k("noon"),
    ),
    "parallel calls are one call with a JSON list of results": (
        "gpt-4o-mini",
        {"messages": [calls(("now", "{}"), ("f", '{"a": 2}')), result(0, "zwölf"), result(1, '{"b":  1}')]},
        3
        + 20
        + o200k(
            '{"tool_uses":[{"recipient_name":"functions.now","parameters":{}},'
            '{"recipient_name":"functions.f","parameters":{"a":2}}]}'
        )
        + o200k('["zw\\u00f6lf", {"b": 1}]'),
    ),
    "a response format makes a system message and a reply header": (
        "gpt-4o",
        {
            "messages": [user("Hi")],
            "response_format": schema("out", schema={"type": "object", "additionalProperties": False}),
        },
        3 + HI + 4 + o200k('# Response Formats\n\n## out\n\n{"type":"object"}') + 2 + o200k("out"),
    ),
    "a response format names itself in earlier answers": (
        "gpt-4o",
        {
            "messages": [system("Hi"), user("Hi"), {"role": "assistant", "content": "Hi"}],
            "response_format": schema("out", description="An ä", schema={"title": "ä"}),
        },
        3 + HI + HI + 4 + o200k('Hi\n\n# Response Formats\n\n## out\n\n// An ä\n{"title":"\\u00e4"}')
        + 2 * (2 + o200k("out")),
    ),
    "properties named like keywords stay": (
        "gpt-5",
        {
            "messages": [user("Hi")],
            "response_format": schema(
                "out", schema={"properties": {"default": {"type": "string", "default": "x"}}, "required": []}
            ),
        },
        2 + HI + 4 + o200k('# Response Formats\n\n## out\n\n{"properties":{"default":{"type":"string"}}}'),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "body", "expected"), CASES.values(), ids=CASES)
def test_a_request_costs(model: str, body: dict[str, Any], expected: int) -> None:
    tokens, unsure = counted(body, model)
    assert tokens == expected
    assert unsure in ((), ("parallel calls without tools",))


@pytest.mark.parametrize(
    ("model", "size", "detail", "expected"),
    [
        ("gpt-4o", (640, 480), "high", 85 + 2 * 170),
        ("gpt-4o", (50, 50), "auto", 85 + 170),
        ("gpt-4o", (2560, 1669), None, 1105),
        ("gpt-4o", (640, 480), "low", 85),
        ("gpt-4o-mini", (640, 480), None, 14_167),
        ("gpt-4.1-mini", (640, 480), None, 488),
        ("gpt-4.1-nano", (540, 360), None, 503),
        ("o4-mini", (640, 480), None, 517),
        ("gpt-5", (640, 480), None, 350),
        ("gpt-5-mini", (640, 480), None, 361),
        ("gpt-5-nano", (640, 480), "low", 451),
        ("gpt-5-nano", (2560, 1669), None, 2233),
        ("gpt-5.4", (60, 30), None, 4),
        ("gpt-5-nano", (16, 16), None, 3),
    ],
)
def test_an_image_costs(model: str, size: tuple[int, int], detail: str | None, expected: int) -> None:
    part = {"type": "image_url", "image_url": {"url": png(*size), "detail": detail}}
    tokens, unsure = counted({"messages": [user([part])]}, model)
    assert tokens == family(model).reply_tokens + 4 + expected
    assert unsure == ()


def test_costs_line_up_with_messages_and_a_batch_is_carried_by_its_first_result() -> None:
    messages = [user("Hi"), calls(("a", "{}"), ("b", "{}")), result(0, "x"), result(1, "y"), user("Hi")]
    costs = prompt_costs({"messages": messages}, family("gpt-4o")).messages
    assert len(costs) == len(messages)
    assert costs[2].texts == ('["x", "y"]',)
    assert (costs[3].tokens, costs[3].texts) == (0, ())


def test_a_weight_knows_nothing_of_the_request_around() -> None:
    messages = [system("Be brief"), {"role": "assistant", "content": "Hi"}]
    body = {"messages": messages, "tools": [FORECAST], "response_format": schema("out", schema={})}
    rules = family("gpt-4o")
    assert message_weights(messages, rules) == prompt_costs({"messages": messages}, rules).messages
    assert message_weights(messages, rules) != prompt_costs(body, rules).messages


def test_ids_used_again_are_matched_in_their_own_turn() -> None:
    turn = [calls(("now", "{}")), result(0, "noon")]
    costs = prompt_costs({"messages": turn + turn}, family("gpt-4o")).messages
    assert costs[:2] == costs[2:]
    assert all(not cost.unsure for cost in costs)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "gpt-4", "gpt-3.5-turbo-0301"])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_the_short_way_through_costs_the_same(model: str, role: str) -> None:
    short, long = {"role": role, "content": "Hi"}, {"role": role, "content": "Hi", "name": None}
    assert message_weights([short], family(model)) == message_weights([long], family(model))


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
