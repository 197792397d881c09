"""Where the next cut will be, before it is made: the past fixes its place, and only its time is a guess. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from proxy.history.plan import Cut
from proxy.history.turns import Layout

TYPICAL_OF: Final = 16
"""So many of the last turns say how long the next message will be."""


def following(cuts: Sequence[Cut], chosen: Cut | None) -> Cut | None:
    """The boundary after the one that is in force, if the history has it already and it lasts."""
    at = _place(cuts, chosen) + 1
    return cuts[at] if at < len(cuts) and cuts[at].fixed else None


def next_cut(
    cuts: Sequence[Cut], chosen: Cut | None, total: int, kept: int, limit: int, more: int
) -> Cut | None:
    """The cut of a request with `more` tokens, where that is another than now. None: none, or none that lasts.

    `total` is the exact count of the whole prompt, `kept` of what was sent of it: where they differ from the
    weights, the next prompt will by as much.
    """
    now = _place(cuts, chosen)
    error = kept - (total - cuts[now].dropped_weight)
    room = limit - error - more
    at = bisect_left(cuts, total - room, key=lambda cut: cut.dropped_weight)
    if at <= now or at >= len(cuts) or not cuts[at].fixed:
        return None
    return cuts[at]


def typical_message(layout: Layout, weights: Sequence[int]) -> int:
    """The upper quartile of what users' messages weighed lately: rather a prefill too many than one too few."""
    lately = sorted(
        sum(weights[unit.start : unit.end])
        for unit in [unit for unit in layout.units if unit.kind == "user"][-TYPICAL_OF:]
    )
    return lately[len(lately) * 3 // 4] if lately else 0


def _place(cuts: Sequence[Cut], chosen: Cut | None) -> int:
    """The index of a cut; a squeezed or forgotten one counts as the one that drops as much."""
    if chosen is None:
        return 0
    at = bisect_left(cuts, chosen.dropped_weight, key=lambda cut: cut.dropped_weight)
    return min(at, len(cuts) - 1)
