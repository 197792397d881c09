"""What holds for every conversation that grows, in each dialect that has messages, counted by a real tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.prompt import Prompt
from proxy.history import turns
from proxy.history.validity import problems
from tests.unit.stages.attempts import CHAT, MESSAGES, RESPONSES, counter, sent, shape, words

Item = dict[str, Any]


class Step(NamedTuple):
    results: tuple[int, ...]
    """Tokens that each of some parallel calls returns."""
    thinks: bool
    behind: int
    """Tokens that the user says together with the results (Messages only)."""


class Turn(NamedTuple):
    asks: int
    steps: tuple[Step, ...]
    answers: int


sizes = st.sampled_from([3, 20, 60, 120])
results = st.sampled_from([5, 50, 200, 900, 3000])
steps = st.builds(
    Step,
    results=st.lists(results, min_size=1, max_size=3).map(tuple),
    thinks=st.booleans(),
    behind=st.sampled_from([0, 0, 10]),
)
talks = st.lists(
    st.builds(Turn, asks=sizes, steps=st.lists(steps, max_size=4).map(tuple), answers=sizes),
    min_size=1,
    max_size=8,
)
SYSTEM = "Be brief, and remember: the code is 4711."


def chat(talk: list[Turn]) -> list[list[Item]]:
    """The items of each request in turn."""
    items: list[Item] = [{"role": "system", "content": SYSTEM}]
    asked = []
    for n, turn in enumerate(talk):
        items.append({"role": "user", "content": f"question {n} {words(turn.asks)}"})
        asked.append(list(items))
        for s, step in enumerate(turn.steps):
            ids = [f"call_{i}" for i in range(len(step.results))]
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": i, "type": "function", "function": function} for i in ids]
            items.append({"role": "assistant", "content": None, "tool_calls": calls})
            for i, size in zip(ids, step.results, strict=True):
                items.append({"role": "tool", "tool_call_id": i, "content": f"{n} {s} {i} {words(size)} end"})
            asked.append(list(items))
        items.append({"role": "assistant", "content": f"answer {n} {words(turn.answers)}"})
    return asked


def responses(talk: list[Turn]) -> list[list[Item]]:
    items: list[Item] = []
    asked = []
    for n, turn in enumerate(talk):
        items.append({"role": "user", "content": f"question {n} {words(turn.asks)}"})
        asked.append(list(items))
        for s, step in enumerate(turn.steps):
            if step.thinks:
                items.append({"type": "reasoning", "id": f"rs_{n}_{s}", "summary": []})
            call = {"type": "function_call", "name": "f", "arguments": "{}"}
            items += [{**call, "call_id": f"c{i}"} for i in range(len(step.results))]
            for i, size in enumerate(step.results):
                output = f"{n} {s} {i} {words(size)} end"
                items.append({"type": "function_call_output", "call_id": f"c{i}", "output": output})
            asked.append(list(items))
        items.append({"role": "assistant", "content": f"answer {n} {words(turn.answers)}"})
    return asked


def messages(talk: list[Turn]) -> list[list[Item]]:
    items: list[Item] = []
    asked = []
    for n, turn in enumerate(talk):
        items.append({"role": "user", "content": f"question {n} {words(turn.asks)}"})
        asked.append(list(items))
        for s, step in enumerate(turn.steps):
            ids = [f"t_{n}_{s}_{i}" for i in range(len(step.results))]
            thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}] if step.thinks else []
            uses = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            items.append({"role": "assistant", "content": [*thought, *uses]})
            found = [
                {"type": "tool_result", "tool_use_id": i, "content": f"{i} {words(size)} end"}
                for i, size in zip(ids, step.results, strict=True)
            ]
            text = [{"type": "text", "text": words(step.behind)}] if step.behind else []
            items.append({"role": "user", "content": [*found, *text]})
            asked.append(list(items))
        items.append({"role": "assistant", "content": f"answer {n} {words(turn.answers)}"})
    return asked


def body(path: str, items: list[Item]) -> dict[str, Any]:
    if path == RESPONSES:
        return {"instructions": SYSTEM, "input": items}
    if path == MESSAGES:
        return {"system": SYSTEM, "messages": items, "max_tokens": 9}
    return {"messages": items}


def speakers(prompt: Prompt) -> list[str]:
    return [m["role"] for m in prompt.messages if m["role"] in ("user", "assistant")]


def alternate(roles: list[str]) -> bool:
    """Steps of one assistant in a row (with results between) are as they were."""
    return all(a != b or a == "assistant" for a, b in pairwise(roles))


@pytest.mark.parametrize(("path", "write"), [(CHAT, chat), (RESPONSES, responses), (MESSAGES, messages)])
@settings(max_examples=25, deadline=None)
@given(
    talk=talks,
    budget=st.sampled_from([800, 1500, 4000]),
    low_water=st.sampled_from([0.35, 0.5, 0.7]),
    squeeze=st.sampled_from([{}, {}, {"tool_output_tokens": 120, "system_repeats": True}]),
)
async def test_a_growing_conversation(
    path: str, write: Any, talk: list[Turn], budget: int, low_water: float, squeeze: Mapping[str, Any]
) -> None:
    gone: set[str] = set()
    as_sent: dict[str, Item] = {}
    for items in write(talk):
        context: dict[str, Any] = {"budget_tokens": budget, "low_water": low_water, "squeeze": squeeze}
        it = await shape(body(path, items), path, **context)
        out = sent(it)

        # In the budget, by the exact count of what is sent.
        assert it.shaped.counts.tokens == (await counter().count(out.chat)).tokens <= budget

        # Valid, roles alternate, and it begins with the system's words and then the user's.
        assert problems(out.messages) == []
        assert alternate(speakers(out))
        assert SYSTEM in str(out.messages[0]["content"])
        assert out.messages[1]["role"] == "user"

        # The question of the live turn and what came last are there.
        live = turns.layout(it.prompt.messages, it.prompt.origin)
        opener = next(unit for unit in reversed(live.units) if unit.opens_turn)
        assert it.prompt.messages[opener.start] in out.messages
        kept = set(range(len(items))) if it.shaped.edits.kept is None else set(it.shaped.edits.kept)
        last = live.units[-1]
        assert kept >= set(turns.kept_items(it.prompt.origin, range(last.start, last.end)))

        # What was dropped stays dropped, and what is kept is what it was when it was sent first.
        dropped = {repr((i, items[i])) for i in range(len(items)) if i not in kept}
        assert gone <= dropped
        over = it.counts.tokens > budget
        for place, item in zip(sorted(kept), out.items, strict=True):
            name = repr((place, items[place]))
            if as_sent.setdefault(name, item) != item:
                # Once at most: when it must be cut for the first time, what fits nowhere is shortened.
                assert over
                assert as_sent[name] == items[place]
                as_sent[name] = item
        gone = dropped

        # The same again is the same, and what was trimmed needs no trimming.
        again = await shape(body(path, items), path, **context)
        assert again.shaped.edits == it.shaped.edits
        fits = await shape(body(path, list(out.items)), path, **context)
        assert fits.shaped.edits.none
