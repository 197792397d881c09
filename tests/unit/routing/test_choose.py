"""Targets are tried in an order that keeps their shares of the load."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.choose import order


@dataclass(frozen=True)
class Place:
    name: int
    weight: float = 1.0


weights = st.floats(1e-6, 1e6)
chances = st.floats(0, 1, exclude_min=True)


@given(st.lists(st.tuples(weights, chances), min_size=1, max_size=8))
def test_each_target_is_there_once(drawn: list[tuple[float, float]]) -> None:
    places = [Place(n, weight) for n, (weight, _) in enumerate(drawn)]
    found = order(places, [chance for _, chance in drawn])
    assert sorted(place.name for place in found) == list(range(len(places)))


def test_the_same_chances_give_the_same_order() -> None:
    places = [Place(n) for n in range(5)]
    assert order(places, [0.1, 0.9, 0.5, 1.0, 0.3]) == [places[n] for n in (3, 1, 2, 4, 0)]


def test_a_single_target_needs_no_chance() -> None:
    place = Place(0)
    assert order([place], []) == [place]


def test_first_by_its_share_and_second_by_the_share_of_what_is_left() -> None:
    random = Random(7)
    places = [Place(0, 6.0), Place(1, 3.0), Place(2, 1.0)]
    firsts: Counter[int] = Counter()
    seconds: Counter[int] = Counter()
    rounds = 20_000
    for _ in range(rounds):
        first, second, _third = order(places, [1.0 - random.random() for _ in places])
        firsts[first.name] += 1
        if first.name == 0:
            seconds[second.name] += 1
    for name, share in ((0, 0.6), (1, 0.3), (2, 0.1)):
        assert abs(firsts[name] / rounds - share) < 0.02
    assert abs(seconds[1] / seconds.total() - 0.75) < 0.02
