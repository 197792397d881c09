"""Units that fit nowhere: what stays with them in any case, and they, are together over the room.

Their tool outputs are shortened to the largest of a few fixed sizes with which they fit, and weigh no more than
from one boundary to the next: filling the room, they would leave nothing of the conversation around them. Which
size that is depends on the unit, its turn and the head only, so it does not change while the history grows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from proxy.history.plan import DROPPABLE
from proxy.history.turns import Layout

LEAST_TOKENS: Final = 64
"""A text is never shortened below this: what would be left says nothing."""
MARGIN_TOKENS: Final = 16
"""Weights are a little off where rendering is not additive."""


def sizes(budget_tokens: int) -> list[int]:
    """Tokens that a text is shortened to, each three quarters of the one before. Steps, so that nothing drifts."""
    found = []
    size = budget_tokens // 2
    while size > LEAST_TOKENS:
        found.append(size)
        size = size * 3 // 4
    return [*found, LEAST_TOKENS]


def margin(room_tokens: int) -> int:
    return MARGIN_TOKENS + max(0, room_tokens) // 64


def stays_with(layout: Layout, weights: Sequence[int]) -> list[int]:
    """For each unit, the weight of it and of what can never be dropped before it while its turn is the live one."""
    found = []
    pinned = 0
    for unit in layout.units:
        own = sum(weights[unit.start : unit.end])
        if unit.opens_turn:
            pinned = 0
        found.append(pinned + own)
        if unit.kind not in DROPPABLE:
            pinned += own
    return found


def over(layout: Layout, weights: Sequence[int], room_tokens: int) -> list[int]:
    """Numbers of the units that are over the room which the head, the tools and the rest leave."""
    return [number for number, tokens in enumerate(stays_with(layout, weights)) if tokens > room_tokens]


def still_over(
    numbers: Sequence[int], layout: Layout, weights: Sequence[int], room_tokens: int, quantum: int
) -> list[int]:
    """Of these units, those that are to be shortened further."""
    together = stays_with(layout, weights)
    own = [sum(weights[unit.start : unit.end]) for unit in layout.units]
    return [number for number in numbers if together[number] > room_tokens or own[number] > quantum]


def with_pins(layout: Layout, sizes: Mapping[int, int]) -> dict[int, int]:
    """The same sizes for what the users said in the turns of these units, which always stays with them."""
    found = dict(sizes)
    pinned: list[int] = []
    for number, unit in enumerate(layout.units):
        if unit.opens_turn:
            pinned = []
        if unit.kind == "user":
            pinned.append(number)
        if number in sizes:
            for each in pinned:
                found[each] = min(found.get(each, sizes[number]), sizes[number])
    return found
