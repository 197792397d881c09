"""Which units fit nowhere, and the fixed sizes that their texts are shortened to."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.history.oversize import LEAST_TOKENS, over, sizes, stays_with, still_over, with_pins
from proxy.history.turns import layout
from tests.unit.history.conversations import Conversation, anything, calls, result, system, user


@given(st.integers(1, 1_000_000))
def test_sizes_fall_to_the_least(budget: int) -> None:
    found = sizes(budget)
    assert found[-1] == LEAST_TOKENS
    assert all(a > b for a, b in pairwise(found))
    assert found[0] <= max(budget // 2, LEAST_TOKENS)


LOOP = Conversation(
    [system(), user(), calls("a"), result("a"), user(), calls("a"), result("a")], [50, 10, 5, 100, 20, 5, 400]
)


def test_a_unit_is_over_with_what_is_pinned_before_it() -> None:
    plan = layout(LOOP.messages)
    # The second user follows results: a turn of its own.
    assert stays_with(plan, LOOP.weights) == [10, 115, 20, 425]
    assert over(plan, LOOP.weights, 425) == []
    assert over(plan, LOOP.weights, 424) == [3]
    assert over(plan, LOOP.weights, 114) == [1, 3]


def test_it_is_shortened_until_it_leaves_a_quantum() -> None:
    plan = layout(LOOP.messages)
    assert still_over([3], plan, LOOP.weights, 1000, 400) == [3]
    assert still_over([3], plan, LOOP.weights, 1000, 405) == []
    assert still_over([1], plan, LOOP.weights, 1000, 1) == [1]


def test_what_users_said_in_the_turn_goes_along() -> None:
    plan = layout(LOOP.messages)
    assert with_pins(plan, {3: 100}) == {3: 100, 2: 100}
    assert with_pins(plan, {1: 80, 3: 100}) == {1: 80, 0: 80, 3: 100, 2: 100}


@given(anything, st.integers(1, 500), st.data())
def test_a_longer_history_changes_nothing_about_what_was_over(
    talk: Conversation, room: int, data: st.DataObject
) -> None:
    whole = layout(talk.messages)
    end = data.draw(st.sampled_from([unit.end for unit in whole.units] or [0]))
    short = talk.first(end)
    before = over(layout(short.messages), short.weights, room)
    assert [n for n in over(whole, talk.weights, room) if n < len(layout(short.messages).units)] == before
