"""A prompt without messages (`/v1/completions`), kept at one end. Where it may be cut is fixed by what was there first.

Keeping the end, the places are a grid laid from the beginning, `quantum` tokens apart. So the cut stays while
the text grows, and moves by a quantum when it must. Keeping the beginning, it never moves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from proxy.history.squeeze import Measure

MOST_CHARACTERS_PER_TOKEN: Final = 8
"""How far to look for a quantum of tokens: prose has 4 to 5, code 3. Longer tokens make steps smaller."""
TRIES: Final = 8

Text: TypeAlias = str | Sequence[int]
"""A text, or token ids."""
Count: TypeAlias = Callable[[Text], Awaitable[int]]
"""The exact count of the request with another prompt."""


def cuttable(fields: Mapping[str, Any]) -> Text | None:
    """The prompt, if it is one text or one list of token ids: what is more (several, media) is no one's to cut."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(each) is int for each in prompt):
        return prompt
    return None


async def places(text: Text, quantum: int, measure: Measure) -> list[int]:
    """Where the kept end may begin: 0, and then each behind at most `quantum` tokens."""
    if not isinstance(text, str):
        return list(range(0, len(text), quantum)) or [0]
    found, at = [0], 0
    while True:
        # A bounded piece: what was there before the text grew is remembered, and costs a look-up.
        piece = text[at : at + quantum * MOST_CHARACTERS_PER_TOKEN]
        head, _ = await measure.clip(piece, quantum, 0)
        at += len(head)
        if not head or at >= len(text):
            return found
        found.append(at)


async def end_of(
    text: Text, total: int, limit: int, quantum: int, measure: Measure, count: Count
) -> Text | None:
    """The longest end on the grid that fits, by its exact count. None: not even the shortest does.

    `total` is the exact count with the whole text.
    """
    at = await places(text, quantum, measure)
    # A step drops a quantum at most, so as a rule the first place asked about is the right one.
    least = -(-(total - limit) // quantum)
    low, high = max(0, min(least, len(at) - 1) - 1), len(at)  # the last known not to fit, the first known to
    step = 1
    while high - low > 1:
        known = high < len(at)
        guess = (low + high) // 2 if known else min(low + step, high - 1)
        if await count(text[at[guess] :]) <= limit:
            high = guess
        else:
            low, step = guess, step * 2
    return text[at[high] :] if high < len(at) else None


async def beginning_of(text: Text, total: int, limit: int, measure: Measure, count: Count) -> Text | None:
    """The longest beginning that fits, by its exact count; the same while the text grows. None: none does."""
    around = total - await _tokens(text, measure)
    room = limit - max(0, around)
    for _ in range(TRIES):
        if room < 1:
            return None
        head = (await measure.clip(text, room, 0))[0] if isinstance(text, str) else text[:room]
        if not head:
            return None
        over = await count(head) - limit
        if over <= 0:
            return head
        room -= over
    return None


async def _tokens(text: Text, measure: Measure) -> int:
    return await measure.tokens(text) if isinstance(text, str) else len(text)
