from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.counts import Counts
from proxy.tokens.truth import DRIFTS, MARGIN_STEPS, MAX_OFFSETS, RAISES, WATCHED, Truth, is_truncated

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
WITH_TOOLS = BODY | {"tools": [{"type": "function", "function": {"name": "f"}}]}
GUESSED = ("unknown model",)


def test_a_few_counts_that_are_off_are_a_drift_and_it_is_told_once() -> None:
    truth = Truth()
    image = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    found = [truth.note(image, Counts(100), 103) for _ in range(DRIFTS + 5)]
    assert [each.drift_began for each in found].index(True) == DRIFTS - 1
    assert sum(each.drift_began for each in found) == 1
    assert truth.drifting


def test_a_drift_has_ended_when_all_of_the_watched_counts_were_right() -> None:
    truth = Truth()
    for _ in range(DRIFTS):
        truth.note({}, Counts(100), 103)
    found = [truth.note(BODY, Counts(100), 100) for _ in range(WATCHED)]
    assert [each.drift_ended for each in found] == [False] * (WATCHED - 1) + [True]
    assert not truth.drifting


def test_counts_that_are_not_sure_are_no_drift() -> None:
    truth = Truth()
    assert not any(truth.note({}, Counts(100, unsure=GUESSED), 150).drift_began for _ in range(WATCHED))


def test_a_server_that_reads_far_less_truncates() -> None:
    assert is_truncated(Counts(8000), 4096)
    assert is_truncated(Counts(8000, unsure=GUESSED), 2048)


def test_small_differences_guesses_and_counts_that_stopped_are_no_truncation() -> None:
    assert not is_truncated(Counts(100), 40)  # 60 tokens
    assert not is_truncated(Counts(8000), 7500)
    assert not is_truncated(Counts(8000, unsure=GUESSED), 5000)
    assert not is_truncated(Counts(8000, complete=False), 100)
    assert not is_truncated(Counts(8000), 0)


def test_an_offset_of_a_guessed_count_is_learned_from_the_first_reply() -> None:
    truth = Truth()
    truth.note(WITH_TOOLS, Counts(100, unsure=GUESSED), 112)
    assert truth.offset(WITH_TOOLS) == 12
    assert truth.offset(BODY) == 0


def test_an_offset_of_an_exact_count_is_believed_when_it_comes_again() -> None:
    truth = Truth()
    truth.note(WITH_TOOLS, Counts(100), 112)
    assert truth.offset(WITH_TOOLS) == 0
    truth.note(WITH_TOOLS, Counts(300), 312)
    assert truth.offset(WITH_TOOLS) == 12


def test_what_differs_from_reply_to_reply_is_no_offset() -> None:
    truth = Truth()
    truth.note(BODY, Counts(100, unsure=GUESSED), 110)
    truth.note(BODY, Counts(210, unsure=GUESSED), 290)
    for reported in (30, 50, 50, 50):
        truth.note(BODY, Counts(40, unsure=GUESSED), reported)
    assert truth.offset(BODY) == 0


def test_an_image_teaches_no_offset() -> None:
    truth = Truth()
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    truth.note(body, Counts(100, unsure=("remote image",)), 300)
    assert truth.offset(body) == 0


def test_offsets_are_bounded_in_number() -> None:
    truth = Truth()
    for number in range(MAX_OFFSETS + 50):
        truth.note(BODY | {"tools": [number]}, Counts(10, unsure=GUESSED), 20)
    assert truth.offset(BODY | {"tools": [0]}) == 0
    assert truth.offset(BODY | {"tools": [MAX_OFFSETS + 49]}) == 10


def test_half_a_surrogate_pair_in_a_tool_is_no_error() -> None:
    truth = Truth()
    body = BODY | {"tools": ["\ud800"]}
    truth.note(body, Counts(10, unsure=GUESSED), 12)
    assert truth.offset(body) == 2


def test_the_margin_rises_after_several_replies_over_it() -> None:
    truth = Truth()
    found = [truth.note({}, Counts(1000), 1015, window=1000) for _ in range(RAISES)]
    assert [each.margin_rose for each in found] == [False] * (RAISES - 1) + [True]
    assert truth.margin == 0.02
    assert truth.usable(1000) == 980
    assert truth.usable(None) is None


def test_without_a_margin_the_window_is_whole() -> None:
    assert Truth().usable(4096) == 4096


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 12_000), st.booleans()), max_size=80))
def test_the_margin_only_rises_and_by_steps(replies: list[tuple[int, int, bool]]) -> None:
    truth = Truth()
    margins = []
    for counted, reported, sure in replies:
        truth.note(BODY, Counts(counted, unsure=() if sure else GUESSED), reported, window=4096)
        margins.append(truth.margin)
    assert margins == sorted(margins)
    assert set(margins) <= set(MARGIN_STEPS)


def test_a_prompt_that_the_server_may_cut_shows_nothing() -> None:
    truth = Truth()
    found = truth.note(BODY, Counts(8000), 4096, may_be_cut=True)
    assert found.error == -3904
    assert not found.truncated
    assert not truth.drifting


def test_what_is_not_a_chat_teaches_no_offset() -> None:
    truth = Truth()
    truth.note(BODY, Counts(100, unsure=GUESSED), 112, teaches=False)
    assert truth.offset(BODY) == 0
