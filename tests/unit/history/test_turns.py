from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.history.turns import RESULTS, Unit, kept_items, layout
from tests.unit.history.conversations import (
    ODD,
    Conversation,
    anything,
    assistant,
    calls,
    conversations,
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


# --- messages that share what they came from ---


def test_results_and_what_the_user_says_in_one_item_go_with_the_call() -> None:
    messages = [user(), calls("a"), result("a"), user(), assistant(), user()]
    origin = [range(1), range(1, 2), range(2, 3), range(2, 3), range(3, 4), range(4, 5)]
    assert [(u.start, u.end, u.kind, u.opens_turn) for u in layout(messages, origin).units] == [
        (0, 1, "user", True),
        (1, 4, "calls", False),
        (4, 5, "assistant", False),
        (5, 6, "user", True),
    ]


def test_items_in_front_of_all_messages_bind_nothing() -> None:
    messages = [system(), system(), user(), assistant()]
    origin = [range(0), range(1), range(1, 2), range(2, 4)]
    found = layout(messages, origin)
    assert found.head == 2
    assert [(u.start, u.end) for u in found.units] == [(2, 3), (3, 4)]


def test_what_is_bound_over_several_messages_is_one_unit() -> None:
    messages = [user(), calls("a"), user(), result("a"), user()]
    bound = range(1, 4)
    origin = [range(1), bound, bound, bound, range(4, 5)]
    assert [(u.start, u.end) for u in layout(messages, origin).units] == [(0, 1), (1, 4), (4, 5)]


def test_kept_messages_keep_their_items_once() -> None:
    origin = [range(0), range(1), range(1, 4), range(3, 5), range(5, 6)]
    assert kept_items(origin, [0, 2, 3]) == [1, 2, 3, 4]
    assert kept_items(origin, [0, 1, 4]) == [0, 5]
    assert kept_items(None, [0, 2]) == [0, 2]


@given(conversations(broken=True))
def test_each_message_of_its_own_item_is_as_without_items(talk: Conversation) -> None:
    origin = [range(i, i + 1) for i in range(len(talk.messages))]
    assert layout(talk.messages, origin) == layout(talk.messages)
