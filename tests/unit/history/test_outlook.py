"""What a low-water mark means, told before and measured after; what becomes of each message."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Edits, Place
from proxy.history.outlook import fates, outlook, turns_until_move
from proxy.history.plan import cuts, quantum
from proxy.history.turns import layout
from tests.unit.history.conversations import Conversation, assistant, system, user


@pytest.mark.parametrize("low_water", [0.35, 0.5, 0.6, 0.75])
@pytest.mark.parametrize("turn", [100, 230, 310])
def test_it_comes_as_it_was_told(low_water: float, turn: int) -> None:
    budget, random, turns = 4000, Random(7), 3000
    sizes = [round(turn * random.uniform(0.5, 1.5)) for _ in range(turns)]
    weights = [0, *[part for size in sizes for part in (size, 0)]]
    messages = [system(), *[user(), assistant()] * turns]
    places = cuts(layout(messages), weights, quantum(budget, low_water))
    grid = [cut.dropped_weight for cut in places if cut.fixed]
    sent, moved, said = [], set(), 0
    for size in sizes[: -turns // 10]:
        said += size
        dropped = next(weight for weight in grid if said - weight <= budget)
        if dropped:
            sent.append(said - dropped)
            moved.add(dropped)
    steps = [b - a for a, b in pairwise(sorted(moved))]
    least = [b for a, b in pairwise(sent) if b < a]
    told = outlook(budget, low_water, turn)
    assert told.mean_tokens == pytest.approx(mean(sent), rel=0.02)
    assert told.every_tokens == pytest.approx(mean(steps), rel=0.03)
    assert told.least_tokens == pytest.approx(mean(least), rel=0.06)
    assert told.every_turns == pytest.approx(mean(steps) / turn, rel=0.03)


def test_turns_larger_than_the_budget_are_no_trouble() -> None:
    told = outlook(100, 0.9, 10_000)
    assert 0 < told.least_tokens <= told.mean_tokens <= 100


def test_turns_until_the_cut_moves_by_the_last_ones() -> None:
    talk = Conversation([system(), *[user(), assistant()] * 20, user()], [9, *[10, 20] * 20, 10])
    assert turns_until_move(layout(talk.messages), talk.weights, 95) == 3
    assert turns_until_move(layout(talk.messages), talk.weights, 29) == 0
    assert turns_until_move(layout(talk.messages), talk.weights, -1) is None
    assert turns_until_move(layout([user()]), [10], 95) is None


def test_what_becomes_of_each_message() -> None:
    messages = [system(), *[user(), assistant()] * 3, system(), user()]
    prompt = CHAT.parse(json.dumps({"model": "m", "messages": messages}).encode())
    cut = next(c for c in cuts(layout(messages), [1] * 9, 2) if c.dropped_messages == 2)
    edits = Edits(kept=[0, 3, 4, 5, 6, 8], texts={Place(4, ("content",)): "short"})
    assert fates(prompt, cut, edits) == [
        *("kept", "dropped", "dropped", "kept"),
        *("shortened", "kept", "kept", "repeated", "kept"),
    ]
    assert fates(prompt, None, Edits()) == ["kept"] * 9


def test_what_shares_an_item_shares_its_fate() -> None:
    answer = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    messages = [
        user(),
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [answer, {"type": "text", "text": "go"}]},
    ]
    fields = {"model": "m", "system": "Be brief.", "messages": messages}
    prompt = MESSAGES.parse(json.dumps(fields).encode())
    edits = Edits(texts={Place(2, ("content", 0, "content")): "4"})
    assert fates(prompt, None, edits) == ["kept", "kept", "kept", "shortened", "shortened"]
