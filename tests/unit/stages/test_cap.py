"""The completion's cap: the smallest of what was asked, the ceiling, and the room that is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Cap
from proxy.dialects.chat import CHAT
from proxy.errors import InvalidRequest
from proxy.exchange import MaxTokens
from proxy.stages.cap import ceiling, minimum

names = CHAT.cap_names
OURS = Cap(
    default_tokens=100,
    max_tokens=500,
    min_tokens=10,
    reasoning_default_tokens=1000,
    reasoning_max_tokens=5000,
    reasoning_min_tokens=200,
)


@pytest.mark.parametrize(
    ("asked", "cap", "room", "expected"),
    [
        # Nothing configured: nothing is put in, and what was asked stays.
        (None, Cap(), None, MaxTokens(None, None)),
        (None, Cap(), 10, MaxTokens(None, None)),
        (7, Cap(), None, MaxTokens(7, "max_tokens")),
        (7, Cap(), 7, MaxTokens(7, "max_tokens")),
        (7, Cap(), 6, MaxTokens(6, "max_tokens", "room", {"max_tokens": 6})),
        # A ceiling.
        (7, Cap(max_tokens=7), None, MaxTokens(7, "max_tokens")),
        (8, Cap(max_tokens=7), None, MaxTokens(7, "max_tokens", "ceiling", {"max_tokens": 7})),
        (8, Cap(max_tokens=7), 6, MaxTokens(6, "max_tokens", "room", {"max_tokens": 6})),
        (8, Cap(max_tokens=7), 9, MaxTokens(7, "max_tokens", "ceiling", {"max_tokens": 7})),
        # Nothing asked: the default, or the ceiling, within the room.
        (None, Cap(max_tokens=7), None, MaxTokens(7, "max_tokens", written={"max_tokens": 7})),
        (None, Cap(default_tokens=5), None, MaxTokens(5, "max_tokens", written={"max_tokens": 5})),
        (
            None,
            Cap(default_tokens=5, max_tokens=7),
            None,
            MaxTokens(5, "max_tokens", written={"max_tokens": 5}),
        ),
        (
            None,
            Cap(default_tokens=9, max_tokens=7),
            None,
            MaxTokens(7, "max_tokens", written={"max_tokens": 7}),
        ),
        (None, Cap(default_tokens=9), 3, MaxTokens(3, "max_tokens", written={"max_tokens": 3})),
        # No room at all, and sent on all the same: no cap that an upstream would find absurd.
        (None, Cap(default_tokens=9), 0, MaxTokens(None, None)),
        (None, Cap(max_tokens=9), -50, MaxTokens(None, None)),
    ],
)
def test_ceiling(asked: int | None, cap: Cap, room: int | None, expected: MaxTokens) -> None:
    given = {} if asked is None else {"max_tokens": asked}
    assert ceiling(given, cap, room, names(reasoning=False), reasoning=False) == expected


def test_reasoning_models_have_keys_of_their_own() -> None:
    assert ceiling({}, OURS, None, names(reasoning=False), reasoning=False).value == 100
    assert ceiling({}, OURS, None, names(reasoning=True), reasoning=True) == MaxTokens(
        1000, "max_completion_tokens", written={"max_completion_tokens": 1000}
    )
    assert (
        ceiling({"max_completion_tokens": 9000}, OURS, None, names(reasoning=True), reasoning=True).value
        == 5000
    )
    assert (minimum(OURS, reasoning=False), minimum(OURS, reasoning=True)) == (10, 200)
    # Without them, the general ones.
    assert ceiling({}, Cap(default_tokens=3), None, names(reasoning=True), reasoning=True).value == 3
    assert minimum(Cap(min_tokens=3), reasoning=True) == 3
    assert minimum(Cap(), reasoning=True) == 1


def test_the_client_keeps_its_field() -> None:
    found = ceiling(
        {"max_completion_tokens": 9}, Cap(max_tokens=5), None, names(reasoning=False), reasoning=False
    )
    assert found == MaxTokens(5, "max_completion_tokens", "ceiling", {"max_completion_tokens": 5})
    assert (
        ceiling({"max_tokens": 9}, Cap(max_tokens=5), None, names(reasoning=True), reasoning=True).name
        == "max_tokens"
    )


numbers = st.none() | st.integers(1, 50)


@given(numbers, numbers, numbers, st.none() | st.integers(1, 50), st.booleans())
def test_never_above_anything(
    asked: int | None, default: int | None, top: int | None, room: int | None, reasoning: bool
) -> None:
    found = ceiling(
        {} if asked is None else {"max_tokens": asked},
        Cap(default_tokens=default, max_tokens=top),
        room,
        names(reasoning=reasoning),
        reasoning=reasoning,
    )
    given_ = [value for value in (asked, top, room) if value is not None]
    if found.value is None:
        assert asked is default is top is None
    else:
        assert 1 <= found.value <= min(given_, default=found.value)
    assert bool(found.written) == (found.value != asked)
    assert bool(found.clamped) == (asked is not None and found.value != asked)


def test_every_name_of_a_cap_is_lowered_that_is_above() -> None:
    asked = {"max_completion_tokens": 50, "max_tokens": 100_000, "n_predict": -1}
    found = ceiling(asked, Cap(max_tokens=60), None, names(reasoning=False), reasoning=False)
    assert found == MaxTokens(50, "max_completion_tokens", "ceiling", {"max_tokens": 60, "n_predict": 60})


@pytest.mark.parametrize("odd", [-1, 0, 1.5, "1000", True, [], {}])
def test_without_a_limit_an_odd_cap_is_the_upstreams_to_judge(odd: object) -> None:
    assert ceiling({"max_tokens": odd}, Cap(), None, names(reasoning=False), reasoning=False).written == {}


@pytest.mark.parametrize("odd", [1.5, "1000", True, [], {}])
def test_with_a_limit_a_cap_that_cannot_be_compared_is_refused(odd: object) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        ceiling({"max_tokens": odd}, Cap(max_tokens=5), None, names(reasoning=False), reasoning=False)


@pytest.mark.parametrize(("given_", "sent"), [(-1, 5), (100.0, 5), (5.0, None), (0, None)])
def test_other_spellings_of_a_number_are_understood(given_: float, sent: int | None) -> None:
    found = ceiling({"max_tokens": given_}, Cap(max_tokens=5), None, names(reasoning=False), reasoning=False)
    assert found.written == ({} if sent is None else {"max_tokens": sent})


def test_a_name_that_only_some_servers_read_is_no_way_around_a_ceiling() -> None:
    found = ceiling({"n_predict": 9}, Cap(max_tokens=5), None, names(reasoning=False), reasoning=False)
    assert found.written == {"n_predict": 5, "max_tokens": 5}
    found = ceiling({"n_predict": 4}, Cap(max_tokens=5), None, ("max_output_tokens",), reasoning=False)
    assert found == MaxTokens(4, "n_predict", written={"max_output_tokens": 4})
    # Where nothing but the room limits it, a cap within that stays as it is.
    assert ceiling({"n_predict": 4}, Cap(), 9, names(reasoning=False), reasoning=False).written == {}
