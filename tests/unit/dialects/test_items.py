"""Edits of a conversation, in three dialects: what is put in, where, and that nothing else moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Dialect, Edits, Place
from proxy.dialects.responses import RESPONSES

CHAT_BODY = (
    '{"model":"m", "messages": [{"role":"system","content":"S"} ,\n'
    '{"role":"user","content":"caf\\u00e9"},{"content":[ {"type":"text","text":"b"}], "role":"user"},'
    '{"role":"tool","tool_call_id":"1","content":"long"},{"role":"assistant","content":"a"} ]}'
)


def chat(edits: Edits) -> str:
    return CHAT.encode(CHAT.parse(CHAT_BODY.encode()), edits).decode()


def test_a_summary_goes_in_front_of_the_first_kept_user_message() -> None:
    assert chat(Edits(summary="S\u00fc\n")) == CHAT_BODY.replace('"caf\\u00e9"', '"Sü\\n\\n\\ncaf\\u00e9"')
    assert chat(Edits(kept=[0, 2, 3, 4], summary="Sum")) == (
        '{"model":"m", "messages": [{"role":"system","content":"S"},'
        '{"content":[{"type":"text","text":"Sum"}, {"type":"text","text":"b"}], "role":"user"},'
        '{"role":"tool","tool_call_id":"1","content":"long"},{"role":"assistant","content":"a"} ]}'
    )


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0, 3, 4], ["S", "<Sum>", "long", "a"]),
        ([4], ["<Sum>", "a"]),
        ([0], ["S", "<Sum>"]),
        ([], ["<Sum>"]),
    ],
)
def test_where_no_user_message_is_first_it_is_one_of_its_own(kept: list[int], expected: list[str]) -> None:
    sent = json.loads(chat(Edits(kept=kept, summary="Sum")))["messages"]
    own = {"role": "user", "content": "Sum"}
    assert ["<Sum>" if message == own else message["content"] for message in sent] == expected


@pytest.mark.parametrize("content", ["null", None, "[]"])
def test_a_user_message_without_text_can_have_a_summary_too(content: str | None) -> None:
    rest = "" if content is None else f',"content":{content}'
    raw = f'{{"model":"m","messages":[{{"role":"user"{rest}}}]}}'
    sent = json.loads(CHAT.encode(CHAT.parse(raw.encode()), Edits(summary="Sum")))["messages"]
    if content == "[]":
        assert sent == [{"role": "user", "content": [{"type": "text", "text": "Sum"}]}]
    else:
        assert sent == [{"role": "user", "content": "Sum"}, json.loads(raw)["messages"][0]]


def test_texts_are_replaced_where_they_stand() -> None:
    place = Place(3, ("content",))
    assert chat(Edits(texts={place: 'so "short"'})) == CHAT_BODY.replace('"long"', '"so \\"short\\""')
    # In an item that does not stay, there is nothing to replace.
    assert "short" not in chat(Edits(kept=[0, 1], texts={place: "short"}))
    lone = chat(Edits(texts={place: "\ud800"}))
    assert lone == CHAT_BODY.replace('"long"', '"\\ud800"')


def test_a_text_that_is_replaced_can_have_the_summary_in_front() -> None:
    sent = chat(Edits(texts={Place(1, ("content",)): "new"}, summary="Sum"))
    assert sent == CHAT_BODY.replace('"caf\\u00e9"', '"Sum\\n\\nnew"')


def both(dialect: Dialect, fields: dict[str, Any], edits: Edits) -> Any:
    """The items that are sent, which are those of the view."""
    prompt = dialect.parse(json.dumps({"model": "m", **fields}).encode())
    items = dialect.parse(dialect.encode(prompt, edits)).items
    assert list(items) == list(dialect.view(prompt, edits).items)
    return items


USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def test_a_summary_in_a_response_is_input_text() -> None:
    items = both(RESPONSES, {"input": [{"role": "developer", "content": "D"}, USER]}, Edits(summary="Sum"))
    assert items[1]["content"] == [{"type": "input_text", "text": "Sum"}, *USER["content"]]
    assert both(RESPONSES, {"input": "hi"}, Edits(summary="Sum")) == ["Sum\n\nhi"]
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    assert both(RESPONSES, {"input": [call]}, Edits(summary="Sum")) == [
        {"role": "user", "content": "Sum"},
        call,
    ]


def test_nothing_is_put_before_tool_results() -> None:
    """Anthropic: "tool_result blocks must come first in the content array"."""
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    items = both(MESSAGES, {"messages": [result]}, Edits(summary="Sum"))
    assert items == [{"role": "user", "content": "Sum"}, result]
    spoken = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "e"}}]}
    items = both(MESSAGES, {"messages": [spoken]}, Edits(summary="Sum"))
    assert items == [
        {"role": "user", "content": [{"type": "text", "text": "Sum"}, *spoken["content"]]},
    ]
