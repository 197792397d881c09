"""Which messages of a conversation must stay together, and where turns begin.

The rules are OpenAI's (facts/tokens.md 4.2): a tool result must follow its call without a gap, and each
call must be answered before any other role speaks. The wire form is Chat Completions; other dialects
hand in their messages in this shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["user", "assistant", "calls", "orphans", "other"]

HEAD: Final = ("system", "developer")
# "function" is the answer to the old-style function_call, which OpenAI still takes.
RESULTS: Final = ("tool", "function")


class Unit(NamedTuple):
    """The messages `start` to `end` (exclusive), kept or dropped as one.

    `calls` is an assistant message that calls tools, with the results behind it; `orphans` are results
    with nothing before them but the head; `other` is any role that is not named here, and a system
    message further down.
    """

    start: int
    end: int
    kind: Kind
    opens_turn: bool


class Layout(NamedTuple):
    """A conversation as `head` leading system and developer messages and the units that follow them."""

    head: int
    units: tuple[Unit, ...]

    @property
    def messages(self) -> int:
        return self.units[-1].end if self.units else self.head


def layout(messages: Sequence[Mapping[str, Any]], origin: Sequence[range] | None = None) -> Layout:
    """Cut a conversation into units. Takes anything, since odd messages are the upstream's to refuse.

    `origin` tells the wire items that each message came from, where they are not one and the same. What
    shares an item can only stay or go together.

    A run of results always belongs to the message before the run, whether or not that message called for
    them: a matching result is there by OpenAI's rule, and an orphan is bound to the neighbour it came
    with. So no result ever gets a new message in front of it, and dropping units cannot make a history
    invalid, or one that was invalid worse. Ids need no look: clients repeat them from turn to turn
    ("call_1"), so they tell nothing beyond the run that a result stands in.
    """
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in messages]
    total = len(roles)
    head = 0
    while head < total and roles[head] in HEAD:
        head += 1

    units: list[Unit] = []
    after_user = False
    at = head
    while at < total:
        role = roles[at]
        end = at + 1
        while end < total and roles[end] in RESULTS:
            end += 1
        if role == "user":
            units.append(Unit(at, end, "user", not after_user))
            after_user = True
        else:
            units.append(Unit(at, end, _kind(role, messages[at]), False))
            after_user = False
        at = end
    return Layout(head, tuple(units) if origin is None else _joined(units, origin))


def _joined(units: Sequence[Unit], origin: Sequence[range]) -> tuple[Unit, ...]:
    """Units that share no item with each other. A joined one is what its first message makes it.

    So results and what the user says in one Anthropic message go with the call: they cannot stand alone.
    """
    joined: list[Unit] = []
    stop = 0
    for unit in units:
        own = [items for items in origin[unit.start : unit.end] if items]
        if joined and own and own[0].start < stop:
            joined[-1] = joined[-1]._replace(end=unit.end)
        else:
            joined.append(unit)
        stop = max([stop, *(items.stop for items in own)])
    return tuple(joined)


def kept_items(origin: Sequence[range] | None, kept: Iterable[int]) -> list[int]:
    """The wire items that the kept messages came from."""
    if origin is None:
        return list(kept)
    items: list[int] = []
    for i in kept:
        items.extend(range(max(origin[i].start, items[-1] + 1 if items else 0), origin[i].stop))
    return items


def _kind(role: object, message: Mapping[str, Any]) -> Kind:
    if role == "assistant":
        calls = message.get("tool_calls")
        if (isinstance(calls, list) and calls) or message.get("function_call"):
            return "calls"
        return "assistant"
    # A run of results that has a message before it never gets here: it was taken with that message.
    return "orphans" if role in RESULTS else "other"


def spans(plan: Layout) -> list[tuple[int, int]]:
    """Index ranges of what stays together, over all messages: those of the head one by one, then the units."""
    return [(i, i + 1) for i in range(plan.head)] + [(unit.start, unit.end) for unit in plan.units]
