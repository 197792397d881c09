"""What requests cost by OpenAI's rules, worked out by hand from shared/facts/tokens.md."""

from typing import Any

import pytest

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
