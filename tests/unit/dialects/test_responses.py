"""Responses requests: items as chat messages, what belongs together, and what is not counted."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from proxy.dialects.prompt import Place, Prompt, Usage
from proxy.dialects.responses import RESPONSES
from proxy.errors import Internal

U = {"role": "user", "content": "u"}
A = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
R = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "r"}]}


def call(id_: str = "1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}"}


def output(id_: str = "1", text: Any = "o") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": text}


def read(input_: Any = "hi", **fields: Any) -> Prompt:
    return RESPONSES.parse(json.dumps({"model": "m", "input": input_, **fields}).encode())


def shape(prompt: Prompt) -> list[tuple[str, range]]:
    """Each message in letters, with the items that it came from."""
    assert prompt.origin is not None
    letters = {"reasoning": "r", "content": "c", "tool_calls": "t"}
    return [
        (message["role"][0] + "".join(letters[key] for key in message if key in letters), origin)
        for message, origin in zip(prompt.messages, prompt.origin, strict=True)
    ]


def test_a_string_is_one_message_of_the_user() -> None:
    prompt = read("hi", instructions="Be brief.")
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert prompt.origin == [range(0), range(1)]
    assert (list(prompt.items), prompt.asks_usage, prompt.unsure) == (["hi"], True, ())


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([U, A, U], [("uc", range(1)), ("ac", range(1, 2)), ("uc", range(2, 3))]),
        # What the assistant did in one go is one message.
        ([U, R, A, call()], [("uc", range(1)), ("arct", range(1, 4))]),
        (
            [U, R, call("1"), call("2"), output("1"), output("2"), A],
            [
                ("uc", range(1)),
                ("art", range(1, 4)),
                ("tc", range(4, 5)),
                ("tc", range(5, 6)),
                ("ac", range(6, 7)),
            ],
        ),
        # Reasoning goes into the message before, and stays with what follows: the two share it.
        ([A, R, A], [("acr", range(2)), ("ac", range(1, 3))]),
        ([R, R, A], [("ar", range(1)), ("arc", range(3))]),
        # Nothing follows: it stays where it is.
        ([R, U], [("ar", range(1)), ("uc", range(1, 2))]),
        # A call that is answered late holds what stands between.
        (
            [U, call("9"), U, output("9"), U],
            [
                ("uc", range(1)),
                ("at", range(1, 4)),
                ("uc", range(1, 4)),
                ("tc", range(1, 4)),
                ("uc", range(4, 5)),
            ],
        ),
        # An id that was used before means its last call.
        (
            [call(), output(), U, call(), output()],
            [
                ("at", range(1)),
                ("tc", range(1, 2)),
                ("uc", range(2, 3)),
                ("at", range(3, 4)),
                ("tc", range(4, 5)),
            ],
        ),
        ([output("lost"), U], [("tc", range(1)), ("uc", range(1, 2))]),
    ],
)
def test_items_become_messages(items: list[Any], expected: list[tuple[str, range]]) -> None:
    assert shape(read(items)) == expected


def test_calls_that_are_answered_late_cost_no_more_for_being_many() -> None:
    items = [item for n in range(20_000) for item in (call(str(n)), U, output(str(n)))]
    assert read(items).origin == [items for n in range(20_000) for items in [range(3 * n, 3 * n + 3)] * 3]


def test_parts_get_the_names_that_chat_has() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    file = {"type": "input_file", "file_id": "f_1"}
    messages = read(
        [{"role": "user", "content": [{"type": "input_text", "text": "x"}, image, file]}]
    ).messages
    assert messages[0]["content"] == [
        {"type": "text", "text": "x"},
        {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}},
        {"type": "file", "file": {"file_id": "f_1"}},
    ]


def test_options_get_the_names_that_chat_has() -> None:
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    schema = {"type": "json_schema", "name": "s", "schema": {}, "strict": True}
    chat = read(
        tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": schema},
        reasoning={"effort": "low"},
    ).chat
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {}, "strict": True},
    }
    assert chat["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "`previous_response_id`: what is stored"),
        ({"conversation": "conv_1"}, "`conversation`"),
        ({"prompt": {"id": "p"}}, "`prompt`"),
        ({"tools": [{"type": "web_search"}]}, "tools of type web_search"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "items of type item_reference"),
        ({"input": [{"id": "x"}]}, "items of type None"),
        ({"input": [{**R, "encrypted_content": "x"}]}, "encrypted reasoning"),
    ],
)
def test_what_is_not_counted_is_said(fields: dict[str, Any], reason: str) -> None:
    (unsure,) = read(**{"input_": fields.pop("input", "hi"), **fields}).unsure
    assert unsure.startswith(reason)


def test_truncation_is_the_clients_leave() -> None:
    assert read(truncation="auto").may_be_cut
    assert not read(truncation="disabled").may_be_cut


def test_tool_outputs_are_found_in_strings_and_in_parts() -> None:
    prompt = read(
        [call(), output(text="one"), call("2"), output("2", [{"type": "input_text", "text": "two"}])]
    )
    assert list(RESPONSES.tool_outputs(prompt)) == [
        (Place(1, ("output",)), "one"),
        (Place(3, ("output", 0, "text")), "two"),
    ]


USAGE = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"usage": USAGE}, Usage(9, 2, 4)),
        ({"type": "response.completed", "response": {"usage": USAGE}}, Usage(9, 2, 4)),
        ({"response": {"usage": None}}, None),
        ({"type": "response.output_text.delta", "delta": "usage"}, None),
        ([], None),
        ({"usage": {"input_tokens": "9", "output_tokens": True}}, Usage()),
    ],
)
def test_usage(value: Any, usage: Usage | None) -> None:
    assert RESPONSES.usage(value) == usage


def test_an_error_in_a_stream_has_the_shape_of_its_events() -> None:
    event = RESPONSES.error_event(RESPONSES.error_body(Internal("no")))
    name, data, *_ = event.split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "code": "internal_error",
        "message": "no",
        "param": None,
        "sequence_number": 0,
    }
    # An upstream's own, in another shape, goes on as it is.
    assert RESPONSES.error_event(b'{\n"detail": 1}') == b'event: error\ndata: { "detail": 1}\n\n'
