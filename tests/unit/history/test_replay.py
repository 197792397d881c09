"""The conversation on which the peers were measured (facts/context-peers.md), request by request."""

from __future__ import annotations

from statistics import mean

import pytest

from proxy.history.plan import cuts, kept_indices, quantum
from proxy.history.turns import layout
from proxy.history.validity import problems
from tests.unit.history.conversations import (
    Conversation,
    additive,
    assistant,
    calls,
    decide,
    result,
    system,
    user,
)

BUDGET = 4000


def requests() -> list[Conversation]:
    talk = Conversation([system()], [400])
    asked = []

    def say(weight: int, *messages: dict[str, object]) -> None:
        talk.messages.extend(messages)
        talk.weights.extend([weight] * len(messages))

    for turn in range(120):
        say(80, user())
        asked.append(talk.first(len(talk.messages)))
        if turn % 5 == 4:
            say(150, calls("call_1"))
            say(300, result("call_1"))
            asked.append(talk.first(len(talk.messages)))
        say(150, assistant())
    return asked


def replay(low_water: float, extra: int) -> tuple[float, float, int]:
    """Mean reuse and mean prompt after the first cut, and how often the cut moved; asserts the rest."""
    step = quantum(BUDGET, low_water)
    before: list[int] | None = None
    reuse, prompts, places = [], [], []
    for talk in requests():
        count = additive(talk, extra)
        chosen, asks = decide(cuts(layout(talk.messages), talk.weights, step), count, BUDGET, exact=True)
        assert chosen is not None
        assert asks <= 1
        assert count(chosen) <= BUDGET
        kept = kept_indices(chosen)
        assert problems([talk.messages[i] for i in kept]) == []
        if chosen.dropped_messages and before is not None:
            same = extra
            for one, two in zip(kept, before, strict=False):
                if one != two:
                    break
                same += talk.weights[one]
            reuse.append(same / count(chosen))
            prompts.append(count(chosen))
            places.append(chosen.resume)
        before = kept
    assert len(requests()) == 144
    assert places == sorted(places)
    return mean(reuse), mean(prompts), len(set(places))


def test_reuse_and_mean_prompt_on_the_peers_conversation() -> None:
    reuse, prompt, moves = replay(0.5, extra=0)
    assert reuse >= 0.80
    assert prompt > 2700
    assert moves <= 18  # 36,000 tokens by 2,000


@pytest.mark.parametrize(
    ("extra", "least"), [(500, 0.84), (1000, 0.87), (1500, 0.90), (2000, 0.90), (2500, 0.92)]
)
def test_large_tools_do_not_make_the_cut_thrash(extra: int, least: float) -> None:
    # Offering every turn behind the grid's last boundary gave 0.86 with 2,000 and 0.88 with 2,500.
    reuse, _, moves = replay(0.5, extra)
    assert reuse >= least
    # 40,000 tokens of history, dropped by a quarter of the room or more at a time.
    assert moves <= 40_000 / ((BUDGET - 400 - extra) / 4)
