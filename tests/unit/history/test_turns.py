from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.history.turns import RESULTS, Unit, layout
from tests.unit.history.conversations import (
    ODD,
    Conversation,
    anything,
    assistant,
    calls,
    result,
    system,
    user,
)


@given(anything)
def test_head_and_units_cover_every_message_once(talk: Conversation) -> None:
    head, units = layout(talk.messages)
    at = head
    for unit in units:
        assert unit.start == at < unit.end
        at = unit.end
    assert at == len(talk.messages) == layout(talk.messages).messages
    assert all(message["role"] in ("system", "developer") for message in talk.messages[:head])


@given(anything)
def test_a_result_never_starts_a_unit_unless_it_stands_right_behind_the_head(talk: Conversation) -> None:
    head, units = layout(talk.messages)
    for unit in units:
        if talk.messages[unit.start].get("role") in RESULTS:
            assert unit.start == head
            assert not unit.opens_turn


@given(anything)
def test_turns_open_at_the_first_of_adjacent_users(talk: Conversation) -> None:
    units = layout(talk.messages).units
    for before, unit in zip((None, *units), units, strict=False):
        expected = unit.kind == "user" and (before is None or before.kind != "user")
        assert unit.opens_turn == expected


def test_parallel_calls_and_results_are_one_unit_and_ids_may_repeat() -> None:
    block = [calls("call_1", "call_2"), result("call_2"), result("call_1")]
    talk = [system(), user(), *block, *block, assistant(), user()]
    assert layout(talk).units == (
        Unit(1, 2, "user", True),
        Unit(2, 5, "calls", False),
        Unit(5, 8, "calls", False),
        Unit(8, 9, "assistant", False),
        Unit(9, 10, "user", True),
    )


def test_old_style_function_call_and_its_result_are_one_unit() -> None:
    talk: list[dict[str, Any]] = [
        user(),
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    assert layout(talk).units == (Unit(0, 1, "user", True), Unit(1, 3, "calls", False))


def test_orphans_go_with_the_message_before_them() -> None:
    talk = [system(), result("a"), user(), result("b"), user(), assistant(), result("c"), user()]
    assert layout(talk).units == (
        Unit(1, 2, "orphans", False),
        Unit(2, 4, "user", True),
        Unit(4, 5, "user", False),
        Unit(5, 7, "assistant", False),
        Unit(7, 8, "user", True),
    )


def test_a_system_message_further_down_is_no_head() -> None:
    found = layout([system(), system("developer"), user(), system(), user()])
    assert found.head == 2
    assert [unit.kind for unit in found.units] == ["user", "other", "user"]
    assert [unit.opens_turn for unit in found.units] == [True, False, True]


@pytest.mark.parametrize("message", [*ODD, None, 3, "text", ["role"]])
def test_odd_messages_do_not_raise(message: Any) -> None:
    for talk in ([message], [system(), message, user(), message], [message, message]):
        assert layout(talk).messages == len(talk)


def test_nothing() -> None:
    assert layout([]) == (0, ())
    assert layout([system()]) == (1, ())
