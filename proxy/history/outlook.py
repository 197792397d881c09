"""What a plan means to people: what a low-water mark keeps, when the cut moves, what becomes of each message. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from proxy.dialects.prompt import Edits, Prompt
from proxy.history.plan import Cut, kept_indices, quantum
from proxy.history.turns import Layout

TYPICAL_TURN_TOKENS: Final = 300
"""A question and its answer, where nothing is known of the conversation: an assumption, and told as one."""
LATELY: Final = 16
"""So many of the last turns say how long the next ones will be."""

Fate: TypeAlias = Literal["kept", "shortened", "dropped", "repeated"]


class Outlook(NamedTuple):
    """How a cut behaves over a long conversation."""

    mean_tokens: int
    """What is sent on average, once there is a cut."""
    least_tokens: int
    """What is left right after the cut has moved."""
    every_tokens: int
    """New history from one move to the next."""
    every_turns: float


def outlook(budget: int, low_water: float, turn_tokens: int = TYPICAL_TURN_TOKENS) -> Outlook:
    """Means over turns of this size, each in one request.

    A boundary is the first turn behind a quantum, so half a turn further on average. The last prompt that fits
    is half a turn below the budget on average; the first one that does not is a turn longer, less what the cut
    drops. In between prompts rise evenly.
    """
    turn = max(1, min(turn_tokens, budget // 2))
    step = max(turn, min(quantum(budget, low_water) + turn // 2, budget - turn))
    return Outlook(
        mean_tokens=budget - step // 2,
        least_tokens=budget + turn // 2 - step,
        every_tokens=step,
        every_turns=step / turn,
    )


def turns_until_move(layout: Layout, weights: Sequence[int], room: int) -> int | None:
    """About how many more turns like the last ones fit before the cut moves. None: there was no whole turn yet."""
    starts = [unit.start for unit in layout.units if unit.opens_turn][-LATELY - 1 :]
    if len(starts) < 2 or room < 0:
        return None
    lately = sum(weights[starts[0] : starts[-1]]) / (len(starts) - 1)
    return int(room / lately) if lately else None


def fates(prompt: Prompt, cut: Cut | None, edits: Edits) -> list[Fate]:
    """What becomes of each message of the chat view.

    `repeated`: left out because an earlier one says the same. Messages that share an item share its fate where a
    text in it is shortened.
    """
    total = len(prompt.messages)
    in_cut = set(range(total) if cut is None else kept_indices(cut))
    stays = None if edits.kept is None else set(edits.kept)
    shortened = {place.item for place in edits.texts}
    found: list[Fate] = []
    for i in range(total):
        items = range(i, i + 1) if prompt.origin is None else prompt.origin[i]
        if i not in in_cut:
            found.append("dropped")
        elif stays is not None and items and not stays.intersection(items):
            found.append("repeated")
        else:
            found.append("shortened" if shortened.intersection(items) else "kept")
    return found
