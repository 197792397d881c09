"""Conversations with which a local counter is checked against the server's own count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from backends.base import Oracle
from backends.errors import Uncountable
from proxy.tokens.counts import Counter

_USER = {
    "role": "user",
    "content": "How far is it from Porto to Évora, and which way is the nicest? 走哪条路?",
}
_ANSWER = {"role": "assistant", "content": "About 400 km.\n\n1. A1 to Lisbon\n2. `N114` 🚗\n"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "distance_km",
        "description": "Road distance between two towns.",
        "parameters": {
            "type": "object",
            "properties": {"start": {"type": "string"}, "end": {"type": "string"}},
            "required": ["start", "end"],
        },
    },
}

CHECKS: Final[Sequence[Mapping[str, Any]]] = (
    {"messages": [_USER]},
    {"messages": [{"role": "system", "content": "You plan journeys.\nBe brief."}, _USER]},
    {"messages": [_USER, _ANSWER, {"role": "user", "content": "  And by train?  "}]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "parts"}]}
        ]
    },
    {"messages": [_USER], "tools": [_TOOL]},
    {"messages": [_USER, _ANSWER, {"role": "user", "content": ""}]},
)


class Checked(NamedTuple):
    """Of `made` comparisons `wrong` differ; `ours` and `theirs` are of the first that does."""

    made: int = 0
    wrong: int = 0
    ours: int = 0
    theirs: int = 0


async def check(counter: Counter, oracle: Oracle) -> Checked:
    """Compare every count that ours calls exact. Raises BackendError when the server cannot be asked."""
    result = Checked()
    for body in CHECKS:
        counts = await counter.count(body)
        if not counts.exact:
            continue
        try:
            theirs = await oracle.prompt_tokens(body)
        except Uncountable:
            # It does not take such a request: nothing to compare.
            continue
        result = result._replace(made=result.made + 1)
        if theirs != counts.tokens:
            first = result.wrong == 0
            result = result._replace(
                wrong=result.wrong + 1,
                ours=counts.tokens if first else result.ours,
                theirs=theirs if first else result.theirs,
            )
    return result
