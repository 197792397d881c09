from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.history.plan import cuts
from proxy.history.turns import layout
from proxy.history.upcoming import following, next_cut, typical_message

QUANTUM = 500


def talk(turns: int) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": "s"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"q{turn}"})
        messages.append({"role": "assistant", "content": f"a{turn}"})
    return messages


def test_the_boundary_after_the_one_in_force_is_known() -> None:
    messages = talk(30)
    places = cuts(layout(messages), [50] * len(messages), QUANTUM)
    first = following(places, None)
    assert first == places[1]
    assert following(places, first) == places[2]


def test_a_boundary_that_may_not_last_is_none() -> None:
    messages = talk(3)  # less than a quantum: there are finer places only
    places = cuts(layout(messages), [50] * len(messages), QUANTUM)
    assert len(places) > 1
    assert following(places, None) is None
    assert next_cut(places, None, total=350, kept=350, limit=360, more=200) is None


def test_no_cut_comes_while_there_is_room() -> None:
    messages = talk(30)
    places = cuts(layout(messages), [50] * len(messages), QUANTUM)
    total = 50 * len(messages)
    assert next_cut(places, None, total, total, limit=total + 200, more=200) is None
    assert next_cut(places, None, total, total, limit=total + 200, more=201) == places[1]


def test_what_the_count_differs_from_the_weights_by_is_heeded() -> None:
    messages = talk(30)
    places = cuts(layout(messages), [50] * len(messages), QUANTUM)
    total = 50 * len(messages)
    kept = total - places[1].dropped_weight + 40
    assert next_cut(places, places[1], total, kept, limit=kept + 99, more=100) == places[2]
    assert next_cut(places, places[1], total, kept, limit=kept + 100, more=100) is None


def test_the_next_message_is_taken_to_be_one_of_the_longer_ones() -> None:
    messages = talk(8)
    weights = [10] + [w for turn in range(8) for w in (10 * (turn + 1), 500)]
    assert typical_message(layout(messages), weights) == 70
    assert typical_message(layout([]), []) == 0


@given(st.lists(st.integers(1, 300), min_size=10, max_size=80), st.integers(100, 3000), st.integers(0, 1500))
def test_the_next_cut_is_what_the_longer_history_is_cut_at(sizes: list[int], limit: int, more: int) -> None:
    """With weights that are exact: the prediction for a known message is the cut that it then gets."""
    messages = talk(len(sizes))
    weights = [20] + [w for size in sizes for w in (size, size)]
    total = sum(weights)
    places = cuts(layout(messages), weights, QUANTUM)
    now = next((cut for cut in places if total - cut.dropped_weight <= limit), None)
    if now is None:
        return
    found = next_cut(places, now, total, total - now.dropped_weight, limit, more)
    longer = [*messages, {"role": "user", "content": "next"}]
    then = cuts(layout(longer), [*weights, more], QUANTUM)
    chosen = next((cut for cut in then if total + more - cut.dropped_weight <= limit), None)
    if found is not None and chosen is not None:
        assert chosen.resume == found.resume
