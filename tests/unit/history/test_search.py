"""The search by itself: counts as a template might give them, far from what weights predict."""

from __future__ import annotations

from itertools import accumulate
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from proxy.history.plan import Cut
from tests.unit.history.conversations import decide

steps = st.lists(st.integers(0, 500), max_size=200)


def places(drops: list[int]) -> list[Cut]:
    return [
        Cut(0, i, 999, (), 0, i, 0, weight, True) for i, weight in enumerate(accumulate(drops, initial=0))
    ]


@given(steps, st.lists(st.integers(0, 500), max_size=201), st.integers(0, 20_000), st.booleans())
def test_finds_the_smallest_that_fits_whatever_the_predictions_say(
    drops: list[int], falls: list[int], limit: int, exact: bool
) -> None:
    found = places(drops)
    falls = (falls + [0] * len(found))[: len(found)]
    left = sum(falls)
    real = [left := left - fall for fall in falls]
    chosen, asks = decide(found, lambda cut: real[cut.resume], limit, exact=exact)
    assert asks <= 3 + ceil(log2(len(found)))
    fitting = [cut for cut in found if real[cut.resume] <= limit]
    if exact and chosen is not None:
        assert chosen in fitting  # perhaps not the smallest: the caller said that predictions are true
    else:
        assert chosen == (fitting[0] if fitting else None)


@given(steps, st.integers(0, 20_000), st.integers(-2000, 2000))
def test_predictions_that_are_all_wrong_by_the_same_need_three_counts(
    drops: list[int], limit: int, off: int
) -> None:
    found = places([drop + 10 for drop in drops])
    total = sum(drops) + 10 * len(drops) + 500

    def count(cut: Cut) -> int:
        return total - cut.dropped_weight + (off if cut.resume else 0)

    chosen, asks = decide(found, count, limit)
    assert chosen == next((cut for cut in found if count(cut) <= limit), None)
    assert asks <= 3


def test_the_whole_prompt_is_never_asked_for() -> None:
    found = places([100, 100, 100])
    assert decide(found, lambda cut: 300 - cut.dropped_weight, 300) == (found[0], 0)
    asked: list[int] = []

    def count(cut: Cut) -> int:
        asked.append(cut.resume)
        return 300 - cut.dropped_weight

    chosen, asks = decide(found, count, 250)
    assert (chosen, asks) == (found[1], 1)
    assert asked == [0, 1]  # the first is how the test learns `predicted_total`
    assert decide(found[:1], count, 250) == (None, 0)


def test_counts_that_contradict_every_prediction_are_still_found_by_halving() -> None:
    found = places([10] * 1000)
    # Nothing gets smaller until cut 900: each new guess would be the next neighbour, 900 times.
    chosen, asks = decide(found, lambda cut: 9999 if cut.resume < 900 else 0, 9990)
    assert chosen == found[900]
    assert asks <= 13
