"""Where a conversation may be cut, and which cut to take: a grid that the past alone fixes.

Boundary j is the first turn after boundary j-1 at which at least `quantum` tokens of weight have passed.
Head, tools, margins and `max_tokens` enter only the comparison with the limit, so the same history gives
the same cut in every process, the cut stays until it must move, and the next one is known turns ahead
(architecture.md, "The cut"; measured in facts/context-peers.md, "Grid instead of replay").

Every set of cuts here keeps one law: of the places that were there before a history grew, the longer
history offers only places that the shorter one offered too. What did not fit then does not fit now, so a
cut never moves back. `Cut.fixed` marks the places that are never taken away again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from proxy.history.turns import Kind, Layout

# Only the assistant's own work goes from inside a turn. What the user says is what the turn is about, and
# a system message in its midst steers it.
DROPPABLE: Final[tuple[Kind, ...]] = ("calls", "assistant", "orphans")


class Cut(NamedTuple):
    """What stays: the head, `pins[:pinned]` and everything from message `resume` on.

    The pins are what is always kept of the turn that is cut inside; all cuts of a turn share one tuple,
    so that a cut costs the same however long the history is.
    """

    head: int
    resume: int
    end: int
    pins: tuple[range, ...]
    pinned: int
    dropped_messages: int
    dropped_turns: int
    dropped_weight: int
    fixed: bool

    @property
    def kept(self) -> tuple[range, ...]:
        """Kept message indices, as the fewest ranges that tell them."""
        kept: list[range] = []
        for part in (range(self.head), *self.pins[: self.pinned], range(self.resume, self.end)):
            if kept and kept[-1].stop == part.start:
                kept[-1] = range(kept[-1].start, part.stop)
            elif part:
                kept.append(part)
        return tuple(kept)


def kept_indices(cut: Cut) -> list[int]:
    return [index for part in cut.kept for index in part]


def quantum(budget_tokens: int, low_water: float) -> int:
    """Tokens from one boundary to the next, so that a cut leaves about `low_water` of the budget."""
    return max(1, round((1 - low_water) * budget_tokens))


def cuts(layout: Layout, weights: Sequence[int], quantum: int) -> Sequence[Cut]:
    """All cuts of a history, the one that drops least (nothing) first; each keeps less than the one before.

    1. The grid of turn openings; behind its last boundary, finer ones (`_finer`) up to the live turn's.
    2. Between these, inside each turn whose own work weighs `quantum` or more, a grid laid from the turn's
       opening: what comes after a long agent turn still sees its end.
    3. Inside the live turn also finer ones, up to the last resort that keeps only pins and the last unit.

    `weights` are tokens of each message, which must not depend on anything but its unit and the model.
    Costs O(messages) and, for each cut, the logarithm of their number.
    """
    head, units = layout
    if len(weights) != layout.messages:
        raise ValueError(f"{len(weights)} weights for {layout.messages} messages")
    if quantum < 1:
        raise ValueError("quantum must be at least 1")
    end = layout.messages
    found = [Cut(head, head, end, (), 0, 0, 0, 0, True)]
    if not units:
        return found
    total = list(accumulate(weights, initial=0))
    base = total[head]
    opens = [number for number, unit in enumerate(units) if unit.opens_turn]
    starts = [units[number].start for number in opens]
    passed = [total[start] - base for start in starts]

    for turn, fixed in _steps(passed, quantum):
        start = starts[turn]
        if start > head:
            found.append(Cut(head, start, end, (), 0, start - head, turn, passed[turn], fixed))
    for turn, (first, start) in enumerate(zip(opens[:-1], starts[:-1], strict=True)):
        # A cheap test that spares most turns the work: weight of the whole turn, its user's included.
        if total[starts[turn + 1]] - total[start] >= quantum:
            found.extend(_inside(layout, total, first, opens[turn + 1], turn, quantum, live=False))
    # Places are all distinct: an inner cut resumes after the opening of its turn and before the next.
    found.sort(key=lambda cut: cut.resume)
    # Without any user message the whole tail counts as the live turn.
    first, turn = (opens[-1], len(opens) - 1) if opens else (0, 0)
    found.extend(_inside(layout, total, first, len(units), turn, quantum, live=True))
    return found


def _inside(
    layout: Layout, total: list[int], first: int, stop: int, turn: int, quantum: int, *, live: bool
) -> list[Cut]:
    """Cuts within the turn of units `first` to `stop`, which drop its assistant's work oldest first.

    The turn's last unit stays: it is what the model goes on from, or the answer that closed the turn.
    """
    head, units = layout
    before = units[first].start - head
    passed, dropped, resumes, pinned = [], [], [], []
    pins: list[range] = []
    weight = total[units[first].start] - total[head]
    offset = weight
    for start, stop_at, kind, _ in units[first : stop - 1]:
        if kind in DROPPABLE:
            weight += total[stop_at] - total[start]
            before += stop_at - start
            passed.append(weight - offset)
            dropped.append(before)
            resumes.append(stop_at)
            pinned.append(len(pins))
        elif pins and pins[-1].stop == start:
            pins[-1] = range(pins[-1].start, stop_at)
        else:
            pins.append(range(start, stop_at))
    shared = tuple(pins)
    end = layout.messages
    # Without a user message nothing lasts: once one comes, a cut starts at it.
    lasts = units[first].opens_turn
    return [
        Cut(
            head=head,
            resume=resumes[at],
            end=end,
            pins=shared,
            pinned=pinned[at],
            dropped_messages=dropped[at],
            dropped_turns=turn,
            dropped_weight=offset + passed[at],
            fixed=fixed and lasts,
        )
        for at, fixed in _steps(passed, quantum)
        if live or fixed
    ]


def _steps(passed: Sequence[int], quantum: int) -> list[tuple[int, bool]]:
    """Places to cut at, of those that `passed` gives the weight before: (index, on the grid).

    Behind the last boundary of the grid the same goes on with half the quantum, and so on, and the last
    place is always there. Where the limit leaves less room than a quantum (large tools, a long system
    prompt), the cut then moves by the largest step that fits and still holds for a while; offering every
    place would move it at each turn.
    """
    steps: list[tuple[int, bool]] = []
    size, at, base = len(passed), 0, 0
    fixed = True
    while quantum and at < size:
        at = bisect_left(passed, base + quantum, at)
        while at < size:
            steps.append((at, fixed))
            base = passed[at]
            at = bisect_left(passed, base + quantum, at + 1)
        at = steps[-1][0] + 1 if steps else 0
        quantum, fixed = quantum // 2, False
    if size and (not steps or steps[-1][0] != size - 1):
        steps.append((size - 1, False))
    return steps


def search(
    cuts: Sequence[Cut], predicted_total: int, limit: int, *, additive: bool = False
) -> Generator[Cut, int, Cut | None]:
    """Find the smallest cut whose exact count is at most `limit`, or None where even the largest is over.

    Yields a cut when it wants its exact count and takes the count by `send()`: counting may need a thread
    or an upstream, which is the caller's to await. `predicted_total` is the exact count of the whole
    prompt; the cut that drops nothing is never asked for.

    Rendering is not additive everywhere, so the cut before the chosen one is asked about too, unless
    `additive` says that predictions are exact; a count over the limit is still answered by going on.
    Asks at most 3 + log2(cuts) times, and takes counts to fall from cut to cut.
    """

    def first_under(room: int) -> int:
        """Index of the first cut that, by its weight, is at most `room`."""
        return bisect_left(cuts, predicted_total - room, key=lambda cut: cut.dropped_weight)

    if predicted_total <= limit:
        return cuts[0]
    over, under = 0, len(cuts)  # the largest cut known not to fit, the smallest known to fit
    guess = first_under(limit)
    asks = 0
    while under - over > 1:
        guess = max(over + 1, min(guess, under - 1))
        count = yield cuts[guess]
        asks += 1
        if count <= limit:
            under = guess
            if additive and asks == 1:
                break
        else:
            over = guess
        # The same error is likely at the neighbours. Where it is not, halving bounds the search.
        error = count - (predicted_total - cuts[guess].dropped_weight)
        guess = first_under(limit - error) if asks < 3 else (over + under) // 2
    return cuts[under] if under < len(cuts) else None


class Description(NamedTuple):
    """A cut in numbers, for people: indices and tokens only, never text.

    `cut_at` is the first message that is kept behind the gap, None when nothing is dropped. `room` is how
    many tokens may come before the cut moves, below zero where nothing fits. `next_at` is where it moves
    then, if that boundary is already in the history; it is certain, because a boundary never goes away.
    """

    cut_at: int | None
    dropped_turns: int
    dropped_messages: int
    dropped_tokens: int
    kept_tokens: int
    room: int
    next_at: int | None


def describe(
    layout: Layout, weights: Sequence[int], quantum: int, limit: int, total: int | None = None
) -> Description:
    """Where the cut is and when it moves, by weights alone; `total` is the whole prompt's exact count."""
    whole = sum(weights) if total is None else total
    places = cuts(layout, weights, quantum)
    at = bisect_left(places, whole - limit, key=lambda cut: cut.dropped_weight)
    at = min(at, len(places) - 1)
    chosen = places[at]
    kept = whole - chosen.dropped_weight
    following = places[at + 1] if at + 1 < len(places) else None
    return Description(
        cut_at=chosen.resume if chosen.dropped_messages else None,
        dropped_turns=chosen.dropped_turns,
        dropped_messages=chosen.dropped_messages,
        dropped_tokens=chosen.dropped_weight,
        kept_tokens=kept,
        room=limit - kept,
        next_at=following.resume if following is not None and following.fixed else None,
    )
