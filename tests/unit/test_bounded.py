from __future__ import annotations

from proxy.bounded import remember


def test_the_oldest_is_forgotten_first_and_there_are_never_too_many() -> None:
    known: dict[str, int] = {}
    for number, key in enumerate("abcd"):
        assert remember(known, key, number, 3) == number
    assert known == {"b": 1, "c": 2, "d": 3}


def test_a_new_value_for_what_is_known_costs_nobody_its_place() -> None:
    known = {"a": 1, "b": 2}
    remember(known, "a", 3, 2)
    assert known == {"a": 3, "b": 2}
