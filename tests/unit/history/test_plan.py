"""What holds for every cut, and for the one that is chosen, over random conversations."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.history.plan import Cut, cuts, describe, kept_indices, quantum
from proxy.history.turns import layout
from proxy.history.validity import problems
from tests.unit.history.conversations import (
    Conversation,
    Count,
    additive,
    anything,
    assistant,
    calls,
    choose,
    conversations,
    decide,
    quanta,
    result,
    share,
    shares,
    system,
    uneven,
    user,
)


def all_cuts(talk: Conversation, step: int) -> list[Cut]:
    return list(cuts(layout(talk.messages), talk.weights, step))


# --- every cut ---


@given(anything, quanta)
def test_cuts_are_nested_and_their_numbers_are_true(talk: Conversation, step: int) -> None:
    found = all_cuts(talk, step)
    everything = set(range(len(talk.messages)))
    assert set(kept_indices(found[0])) == everything
    assert found[0].dropped_messages == found[0].dropped_turns == found[0].dropped_weight == 0
    opens = {unit.start for unit in layout(talk.messages).units if unit.opens_turn}
    for less, more in pairwise(found):
        assert set(kept_indices(more)) < set(kept_indices(less))
    for cut in found:
        kept = kept_indices(cut)
        assert kept == sorted(set(kept))
        dropped = everything - set(kept)
        assert cut.dropped_messages == len(dropped)
        assert cut.dropped_weight == sum(talk.weights[i] for i in dropped)
        assert cut.dropped_turns == len(dropped & opens)
        assert all(one.stop < two.start for one, two in pairwise(cut.kept))


@given(anything, quanta)
def test_what_is_always_kept(talk: Conversation, step: int) -> None:
    head, units = layout(talk.messages)
    opens = [number for number, unit in enumerate(units) if unit.opens_turn]
    live = units[opens[-1] :] if opens else units
    for cut in all_cuts(talk, step):
        kept = set(kept_indices(cut))
        assert kept >= set(range(head))
        if units:
            assert kept >= set(range(units[-1].start, units[-1].end))
        for unit in units:
            assert len(kept & set(range(unit.start, unit.end))) in (0, unit.end - unit.start)
        for unit in live:
            if unit.kind in ("user", "other"):
                assert unit.start in kept
        if cut.dropped_messages and opens:
            first = next(i for i in sorted(kept) if i >= head)
            assert talk.messages[first]["role"] == "user"


@given(anything, quanta)
def test_no_cut_breaks_a_rule_that_the_whole_did_not_break(talk: Conversation, step: int) -> None:
    before = problems(talk.messages)
    for cut in all_cuts(talk, step):
        kept = kept_indices(cut)
        after = problems([talk.messages[i] for i in kept])
        if talk.messages:
            assert {in_whole(told, kept) for told in after} <= set(before)


def in_whole(told: str, kept: list[int]) -> str:
    """A problem of trimmed messages, told with the place that it has in the whole history."""
    return re.sub(r"\d+", lambda number: str(kept[int(number[0])]), told, count=1)


@given(anything, quanta)
def test_the_grid_of_turns_is_as_defined(talk: Conversation, step: int) -> None:
    head, units = layout(talk.messages)
    expected, base = [head], head
    for unit in units:
        if unit.opens_turn and sum(talk.weights[base : unit.start]) >= step:
            expected.append(unit.start)
            base = unit.start
    starts = {unit.start for unit in units if unit.opens_turn} | {head}
    found = [
        cut.resume for cut in all_cuts(talk, step) if cut.fixed and not cut.pins and cut.resume in starts
    ]
    assert found == expected


@given(anything, quanta, st.data())
def test_places_of_the_past_never_come_anew_and_fixed_ones_never_go(
    talk: Conversation, step: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(talk.messages)))
    dropped_then = {drops(cut, talk): cut for cut in all_cuts(talk.first(length), step)}
    dropped_now = {drops(cut, talk) for cut in all_cuts(talk, step)}
    units = layout(talk.messages[:length]).units
    seen_last = units[-1].start if units else 0
    assert {gone for gone in dropped_now if max(gone, default=0) < seen_last} <= set(dropped_then)
    assert {gone for gone, cut in dropped_then.items() if cut.fixed} <= dropped_now


def drops(cut: Cut, talk: Conversation) -> frozenset[int]:
    return frozenset(range(cut.end)) - set(kept_indices(cut))


# --- the chosen cut ---


@given(anything, quanta, shares, st.integers(0, 300), st.sampled_from([additive, uneven]))
def test_chosen_is_in_the_limit_and_the_one_before_is_not(
    talk: Conversation, step: int, percent: int, extra: int, make: Callable[[Conversation, int], Count]
) -> None:
    limit = share(talk, percent, extra)
    found, count = all_cuts(talk, step), make(talk, extra)
    chosen, _ = decide(found, count, limit)
    if chosen is None:
        assert count(found[-1]) > limit
        return
    assert count(chosen) <= limit
    at = found.index(chosen)
    assert at == 0 or count(found[at - 1]) > limit
    if make is additive:
        assert chosen == next(cut for cut in found if count(cut) <= limit)
        assert decide(found, count, limit, exact=True)[0] == chosen
    if talk.messages:
        assert kept_indices(chosen)
    assert choose(talk, step, limit, count) == chosen


@given(anything, quanta, shares, st.integers(0, 300))
def test_exact_predictions_need_one_count(talk: Conversation, step: int, percent: int, extra: int) -> None:
    limit = share(talk, percent, extra)
    assert decide(all_cuts(talk, step), additive(talk, extra), limit, exact=True)[1] <= 1


@given(anything, quanta, shares)
def test_trimming_what_was_trimmed_changes_nothing(talk: Conversation, step: int, percent: int) -> None:
    limit = share(talk, percent)
    chosen = choose(talk, step, limit)
    if chosen is not None:
        again = choose(talk.only(kept_indices(chosen)), step, limit)
        assert again is not None
        assert again.dropped_messages == 0


@given(anything, quanta, shares, st.integers(0, 2000))
def test_more_room_never_keeps_less(talk: Conversation, step: int, percent: int, more: int) -> None:
    limit = share(talk, percent)
    small, large = choose(talk, step, limit), choose(talk, step, limit + more)
    if small is not None:
        assert large is not None
        assert set(kept_indices(small)) <= set(kept_indices(large))


@settings(max_examples=300)
@given(anything, quanta, shares, st.data())
def test_a_growing_history_keeps_its_cut_until_it_must_move(
    talk: Conversation, step: int, percent: int, data: st.DataObject
) -> None:
    limit = share(talk, percent)
    length = data.draw(st.integers(0, len(talk.messages)))
    short = talk.first(length)
    before, after = choose(short, step, limit), choose(talk, step, limit)
    if before is None or after is None:
        return
    assert {i for i in kept_indices(after) if i < length} <= set(kept_indices(before))
    if before.fixed:
        gone = drops(before, short)
        if sum(talk.weights) - before.dropped_weight <= limit:
            assert drops(after, talk) == gone


@given(anything, quanta, shares, st.integers(0, 500), st.integers(0, 500))
def test_a_heavier_head_keeps_the_cut_while_it_fits(
    talk: Conversation, step: int, percent: int, extra: int, more: int
) -> None:
    limit = share(talk, percent, extra)
    before = choose(talk, step, limit, additive(talk, extra))
    if before is not None and additive(talk, extra + more)(before) <= limit:
        assert choose(talk, step, limit, additive(talk, extra + more)) == before


@given(anything, quanta)
def test_one_more_system_message_shifts_every_cut_by_one(talk: Conversation, step: int) -> None:
    longer = Conversation([system(), *talk.messages], [333, *talk.weights])
    before = [(cut.resume + 1, cut.dropped_weight, cut.fixed) for cut in all_cuts(talk, step)]
    assert [(cut.resume, cut.dropped_weight, cut.fixed) for cut in all_cuts(longer, step)] == before


@given(conversations(), quanta, shares)
def test_nothing_is_changed_and_the_same_comes_out(talk: Conversation, step: int, percent: int) -> None:
    limit = share(talk, percent)
    before = repr(talk)
    assert choose(talk, step, limit) == choose(talk, step, limit)
    assert repr(talk) == before


# --- by hand ---


def loop(steps: int) -> Conversation:
    messages, weights = [system(), user()], [400, 80]
    for _ in range(steps):
        messages += [calls("call_1"), result("call_1")]
        weights += [100, 200]
    return Conversation(messages, weights)


def test_an_agent_loop_inside_one_turn_moves_its_cut_only_by_the_quantum() -> None:
    seen = []
    for steps in range(1, 60):
        chosen = choose(loop(steps), 2000, 4000)
        assert chosen is not None
        assert kept_indices(chosen)[:2] == [0, 1]
        seen.append(chosen.dropped_weight)
    assert seen == sorted(seen)
    # Seven steps of 300 are the first to reach 2,000.
    assert sorted(set(seen)) == [0, 2100, 4200, 6300, 8400, 10500, 12600, 14700]


def test_the_turn_after_a_long_agent_turn_still_sees_its_end() -> None:
    talk = loop(40)
    talk = Conversation([*talk.messages, assistant(), user()], [*talk.weights, 150, 80])
    chosen = choose(talk, 2000, 4000)
    assert chosen is not None
    assert [len(part) for part in chosen.kept] == [2, 12]
    assert chosen.dropped_turns == 0


def test_within_a_past_turn_only_the_grid_cuts() -> None:
    talk = loop(16)
    talk = Conversation([*talk.messages, assistant(), user(), assistant()], [*talk.weights, 150, 80, 150])
    found = [(cut.resume, cut.pinned, cut.fixed) for cut in all_cuts(talk, 2000)]
    # Two boundaries inside the long turn, then the next turn's opening.
    assert found == [(1, 0, True), (16, 1, True), (30, 1, True), (35, 0, True)]


def test_a_system_message_within_the_live_turn_stays() -> None:
    block = [calls("a"), result("a")]
    talk = Conversation([user(), *block, system(), *block, *block], [10, 50, 50, 10, 50, 50, 50, 50])
    last = all_cuts(talk, 1)[-1]
    assert kept_indices(last) == [0, 3, 6, 7]
    assert last.kept == (range(1), range(3, 4), range(6, 8))


def test_without_any_user_the_tail_is_cut_like_a_live_turn() -> None:
    talk = Conversation([system(), *[assistant()] * 5], [5, 10, 10, 10, 10, 10])
    # No place lasts but the first: once a user speaks, cuts start there.
    assert [(kept_indices(cut), cut.fixed) for cut in all_cuts(talk, 20)] == [
        ([0, 1, 2, 3, 4, 5], True),
        ([0, 3, 4, 5], False),
        ([0, 5], False),
    ]


def test_orphans_behind_the_head_go_first() -> None:
    talk = Conversation([system(), result("a"), assistant(), assistant()], [5, 10, 10, 10])
    assert [kept_indices(cut) for cut in all_cuts(talk, 10)] == [[0, 1, 2, 3], [0, 2, 3], [0, 3]]


def test_one_message_cannot_be_cut() -> None:
    assert [cut.dropped_messages for cut in all_cuts(Conversation([user()], [9000]), 10)] == [0]
    assert choose(Conversation([user()], [9000]), 10, 100) is None
    assert [cut.kept for cut in all_cuts(Conversation([], []), 10)] == [()]


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="2 weights for 1 messages"):
        cuts(layout([user()]), [1, 2], 10)
    with pytest.raises(ValueError, match="quantum"):
        cuts(layout([user()]), [1], 0)


@pytest.mark.parametrize(
    ("budget", "low", "expected"), [(4000, 0.5, 2000), (4000, 0.56, 1760), (1, 0.9, 1), (4000, 1.0, 1)]
)
def test_quantum(budget: int, low: float, expected: int) -> None:
    assert quantum(budget, low) == expected


def test_a_hundred_thousand_tiny_messages_share_their_pins() -> None:
    messages = [user()] + [assistant(), system()] * 50_000
    found = cuts(layout(messages), [1] * len(messages), 1)
    assert len(found) == 50_001
    assert found[-1].pins is found[1].pins
    assert len(found[-1].kept) == 50_001


# --- describe ---


def test_describe_tells_the_cut_and_when_it_moves() -> None:
    turn = [user(), assistant()]
    talk = Conversation([system(), *turn * 30, user()], [400, *[80, 150] * 30, 80])
    told = describe(layout(talk.messages), talk.weights, 2000, 4000)
    # The ninth turn is the first with 2,000 tokens before it; 4,000 less 2,070 and 2,070 again is the next.
    assert told.cut_at == 37
    assert (told.dropped_turns, told.dropped_messages, told.dropped_tokens) == (18, 36, 4140)
    assert told.kept_tokens == 400 + 30 * 230 + 80 - 4140
    assert told.room == 4000 - told.kept_tokens
    assert told.next_at == 55


@given(anything, quanta, shares, st.integers(0, 300))
def test_describe_agrees_with_the_search(talk: Conversation, step: int, percent: int, extra: int) -> None:
    limit = share(talk, percent, extra)
    count = additive(talk, extra)
    chosen = choose(talk, step, limit, count)
    total = extra + sum(talk.weights)
    told = describe(layout(talk.messages), talk.weights, step, limit, total)
    if chosen is None:
        assert told.room < 0
    else:
        assert told.cut_at == (chosen.resume if chosen.dropped_messages else None)
        assert told.room == limit - count(chosen) >= 0
