from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.history.validity import problems
from tests.unit.history.conversations import (
    ODD,
    Conversation,
    assistant,
    calls,
    conversations,
    result,
    system,
    user,
)


@given(conversations())
def test_whole_conversations_are_valid(talk: Conversation) -> None:
    assert problems(talk.messages) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ["messages: empty"]),
        ([user(), result("a")], ["messages[1]: tool result without its call before it"]),
        (
            [user(), calls("a"), result("b")],
            [
                "messages[2]: tool result without its call before it",
                "messages[1].tool_calls[0]: no result",
            ],
        ),
        ([user(), calls("a", "b"), result("a"), user()], ["messages[1].tool_calls[1]: no result"]),
        ([user(), calls("a")], ["messages[1].tool_calls[0]: no result"]),
        # Only the adjacent block counts, though the id is known from before.
        (
            [user(), calls("a"), result("a"), user(), result("a")],
            ["messages[4]: tool result without its call before it"],
        ),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], ["messages[0]: tool_calls is empty"]),
        (
            [{"role": "assistant", "content": "x", "tool_calls": {}}],
            ["messages[0]: tool_calls is not a list"],
        ),
        ([{"role": "assistant"}], ["messages[0]: no content"]),
        ([{"role": "user", "content": None}], ["messages[0]: no content"]),
        ([{"role": "function", "content": "x"}], ["messages[0]: function result without a name"]),
        ([3], ["messages[0]: not an object"]),
    ],
)
def test_each_rule_names_its_place(messages: list[Any], expected: list[str]) -> None:
    assert problems(messages) == expected


@pytest.mark.parametrize(
    "message",
    [
        assistant(""),
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
    ],
)
def test_what_stands_in_for_content(message: dict[str, Any]) -> None:
    assert problems([user(), message]) == []


@pytest.mark.parametrize("content", ["as JSON please", [{"type": "text", "text": "Json"}]])
def test_json_object_needs_the_word(content: Any) -> None:
    assert problems([user(content)], json_object=True) == []
    missing = ["messages: the word json is missing"]
    assert problems([user("plain"), user([{"text": 3}, 4])], json_object=True) == missing


@pytest.mark.parametrize("message", ODD)
def test_odd_messages_do_not_raise(message: dict[str, Any]) -> None:
    assert problems([system(), message, message], json_object=True)


def test_no_text_and_no_id_in_what_is_told() -> None:
    told = " ".join(problems([user("secret"), calls("secret"), result("secret-2"), {"role": "secret"}]))
    assert "secret" not in told
