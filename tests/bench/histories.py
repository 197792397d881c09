"""Conversations as clients send them, request by request, of texts with so many tokens. Deterministic."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
History: TypeAlias = list[Message]

_WORDS = """
    time people year way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work government number night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head house
    service friend father power hour game line end member law car city community
"""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up in the records of the company, by its name or its number.",
            "parameters": {
                "type": "object",
                "properties": {
                    "what": {"type": "string", "description": "A name, a number, or a few words."},
                    "since": {"type": "string", "description": "A date: nothing older is returned."},
                    "most": {"type": "integer", "description": "How many results are wanted, at most 50."},
                },
                "required": ["what"],
            },
        },
    }
]
"""What every request offers, since calls need it. It is in front of all messages and counted with them."""


SPREAD = 0.3
"""Texts are up to this share longer or shorter than told. All of one size would fit the grid by luck, or not."""


class Writer:
    """Texts of about so many tokens, each another. Of these words, each is one token of SmolLM2's."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self._words = _WORDS.split()

    def text(self, tokens: int) -> str:
        exact = tokens * self._random.uniform(1 - SPREAD, 1 + SPREAD)
        return " ".join(self._random.choices(self._words, k=round(exact)))

    def says(self, role: str, tokens: int) -> Message:
        return {"role": role, "content": self.text(tokens)}

    def calls(self, *ids: str) -> Message:
        made = [
            {"id": i, "type": "function", "function": {"name": "look_up", "arguments": '{"what": "it"}'}}
            for i in ids
        ]
        return {"role": "assistant", "content": self.text(100), "tool_calls": made}

    def result(self, of: str, tokens: int) -> Message:
        return {"role": "tool", "tool_call_id": of, "content": self.text(tokens)}


def peers(seed: int = 1, turns: int = 120) -> list[History]:
    """The conversation on which others were measured: 144 requests."""
    writer = Writer(seed)
    talk: History = [writer.says("system", 400)]
    asked: list[History] = []
    for turn in range(turns):
        talk.append(writer.says("user", 80))
        asked.append(list(talk))
        if turn % 5 == 4:
            talk += [writer.calls("call_1"), writer.result("call_1", 300)]
            asked.append(list(talk))
        talk.append(writer.says("assistant", 150))
    return asked


def tool_heavy(seed: int = 1, turns: int = 40) -> list[History]:
    """Every second turn calls two tools at once, which return 2,000 tokens each."""
    writer = Writer(seed)
    talk: History = [writer.says("system", 400)]
    asked: list[History] = []
    for turn in range(turns):
        talk.append(writer.says("user", 80))
        asked.append(list(talk))
        if turn % 2:
            talk += [writer.calls("a", "b"), writer.result("a", 2000), writer.result("b", 2000)]
            asked.append(list(talk))
        talk.append(writer.says("assistant", 150))
    return asked


def late_attach(seed: int = 1) -> list[History]:
    """A client that comes with a history of 20,000 tokens."""
    return peers(seed)[72:]


def branched(seed: int = 1) -> list[History]:
    """The user goes back, says something else, and goes on from there; some old messages are edited."""
    writer = Writer(seed + 100)
    asked: list[History] = []
    for at, history in enumerate(peers(seed, 60)):
        asked.append(history)
        if history[-1]["role"] == "user" and at % 4 == 3:
            asked.append([*history[:-1], writer.says("user", 120)])
        if at % 9 == 8:
            said = [i for i, message in enumerate(history) if message["role"] == "user"]
            edited = list(history)
            edited[said[len(said) * 2 // 3]] = writer.says("user", 60)
            asked.append(edited)
    return asked


def interleaved(seed: int = 1) -> list[History]:
    """Two conversations under one system prompt, in turn."""
    one = peers(seed, 60)
    writer = Writer(seed + 100)
    talk: History = [one[0][0]]
    other: list[History] = []
    for _ in one:
        talk.append(writer.says("user", 60))
        other.append(list(talk))
        talk.append(writer.says("assistant", 200))
    return [history for pair in zip(one, other, strict=True) for history in pair]


def agent_loop(seed: int = 1, steps: int = 80) -> list[History]:
    """One question, and a loop of calls that grows behind it."""
    writer = Writer(seed)
    talk: History = [writer.says("system", 400), writer.says("user", 80)]
    asked = [list(talk)]
    for step in range(steps):
        talk += [writer.calls("call_1"), writer.result("call_1", 900 if step % 7 == 6 else 250)]
        asked.append(list(talk))
    return asked


def huge_result(seed: int = 1) -> list[History]:
    """A tool that returns five times the budget, in the middle of a conversation that goes on."""
    asked = peers(seed, 40)
    writer = Writer(seed + 100)
    found = [writer.calls("call_1"), writer.result("call_1", 20_000)]
    place = len(asked[20])
    return [
        history if len(history) < place else [*history[:place], *found, *history[place:]] for history in asked
    ]


SCENARIOS: dict[str, Callable[[int], list[History]]] = {
    "peers": peers,
    "tool-heavy": tool_heavy,
    "late attach": late_attach,
    "branched": branched,
    "interleaved": interleaved,
    "agent loop": agent_loop,
    "huge result": huge_result,
}
