"""Random conversations as clients send them, whole and broken, with a weight for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from proxy.history.plan import Cut, cuts, kept_indices, search
from proxy.history.turns import layout

Message = dict[str, Any]


class Conversation(NamedTuple):
    messages: list[Message]
    weights: list[int]

    def first(self, length: int) -> Conversation:
        return Conversation(self.messages[:length], self.weights[:length])

    def only(self, indices: Sequence[int]) -> Conversation:
        return Conversation([self.messages[i] for i in indices], [self.weights[i] for i in indices])


def system(role: str = "system") -> Message:
    return {"role": role, "content": "be brief"}


def user(content: Any = "go on") -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any = "done") -> Message:
    return {"role": "assistant", "content": content}


def calls(*ids: str) -> Message:
    made = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(of: str) -> Message:
    return {"role": "tool", "tool_call_id": of, "content": "42"}


contents = st.sampled_from(["", "hello", "ünï", [{"type": "text", "text": "parts"}]])
heads = st.lists(st.sampled_from([system(), system("developer")]), max_size=3)


@st.composite
def call_blocks(draw: st.DrawFn) -> list[Message]:
    """A call and all its results, in any order; ids repeat from block to block."""
    if draw(st.integers(0, 5)) == 0:
        old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
        return [old, {"role": "function", "name": "f", "content": "42"}]
    ids = ["call_1", "call_2", "call_3"][: draw(st.integers(1, 3))]
    return [calls(*ids), *map(result, draw(st.permutations(ids)))]


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    said = [user(draw(contents)) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    work = draw(
        st.lists(
            st.one_of(call_blocks(), contents.map(lambda content: [assistant(content)]), st.just([system()])),
            max_size=draw(st.sampled_from([1, 2, 12])),
        )
    )
    return said + [message for step in work for message in step] + [assistant(draw(contents))]


ODD: list[Message] = [
    {},
    {"role": None},
    {"role": ["user"]},
    {"role": "wizard", "content": "?"},
    {"role": "assistant", "tool_calls": "none"},
    {"role": "assistant", "tool_calls": {}},
    {"role": "assistant", "content": None, "tool_calls": [None, 3, {"id": 7}]},
    {"role": "tool"},
    result("call_9"),
    calls("call_1", "call_2"),
]


@st.composite
def conversations(
    draw: st.DrawFn, *, broken: bool = False, users: bool = True, heaviest: int = 400
) -> Conversation:
    messages = draw(heads)
    messages = messages + (draw(st.sampled_from([[], [], [assistant("welcome")]])) if messages else [])
    if draw(st.integers(0, 5)) == 0 or not users:
        messages += chain.from_iterable(draw(st.lists(call_blocks(), max_size=8)))
    if users:
        for turn in [draw(turns()) for _ in range(draw(st.sampled_from([1, 2, 4, 8])))]:
            messages += turn
        # The live turn stops where a client asks: behind a user or behind results.
        messages += draw(
            st.one_of(
                st.just([]),
                st.just([user()]),
                st.lists(call_blocks(), max_size=8).map(
                    lambda blocks: [user(), *chain.from_iterable(blocks)]
                ),
            )
        )
    if broken:
        for message in draw(st.lists(st.sampled_from(ODD), max_size=5)):
            messages.insert(draw(st.integers(0, len(messages))), message)
        for _ in range(draw(st.integers(0, 3))):
            if messages:
                messages.pop(draw(st.integers(0, len(messages) - 1)))
    size = len(messages)
    return Conversation(messages, draw(st.lists(st.integers(0, heaviest), min_size=size, max_size=size)))


anything = st.one_of(
    conversations(),
    conversations(broken=True),
    conversations(users=False),
    conversations(users=False, broken=True),
)
quanta = st.sampled_from([1, 7, 150, 600, 2000])
# Limits, in percent of the whole prompt.
shares = st.sampled_from([15, 25, 40, 55, 70, 85, 99, 105])

Count = Callable[[Cut], int]


def additive(talk: Conversation, extra: int = 0) -> Count:
    """Exact count as the sum of weights; `extra` stands for tools and the reply header."""
    return lambda cut: extra + sum(talk.weights[i] for i in kept_indices(cut))


def uneven(talk: Conversation, extra: int = 0) -> Count:
    """A count that a template makes: what comes first and who speaks twice in a row changes a little."""

    def count(cut: Cut) -> int:
        kept = kept_indices(cut)
        roles = [talk.messages[i].get("role") for i in kept]
        merged = sum(3 for one, two in pairwise(roles) if one == two)
        first = kept[cut.head] * 7 % 11 if len(kept) > cut.head else 0
        return max(0, extra + sum(talk.weights[i] + 3 for i in kept) - merged + first)

    return count


def decide(places: Sequence[Cut], count: Count, limit: int, *, exact: bool = False) -> tuple[Cut | None, int]:
    """Run a search to its end: what it chose, and how often it asked."""
    asking = search(places, count(places[0]), limit, additive=exact)
    asks = 0
    try:
        wanted = next(asking)
        while True:
            asks += 1
            wanted = asking.send(count(wanted))
    except StopIteration as done:
        return done.value, asks


def share(talk: Conversation, percent: int, extra: int = 0) -> int:
    return (extra + sum(talk.weights)) * percent // 100


def choose(talk: Conversation, quantum: int, limit: int, count: Count | None = None) -> Cut | None:
    places = cuts(layout(talk.messages), talk.weights, quantum)
    return decide(places, count or additive(talk), limit)[0]
