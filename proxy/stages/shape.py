"""Make the prompt fit its budget: what is squeezed, where the cut is, and the exact count of what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from proxy import conversation
from proxy.conversation import Conversation, Planned, Texts
from proxy.dialects.prompt import Edits
from proxy.errors import Overflow
from proxy.exchange import Attempt, Model, Shaped
from proxy.history import plain, plan
from proxy.history.plan import Cut
from proxy.memories import Book, Memories
from proxy.tokens.counts import Counts


class Shape:
    def __init__(self, book: Book) -> None:
        self._book = book

    async def __call__(self, it: Attempt) -> None:
        model, budget, limit = it.model, it.model.budget, it.model.limit
        cuttable = budget is not None and limit is not None and not it.prompt.several
        fits = not cuttable or it.counts.tokens <= (limit or 0)
        if model.context.strategy == "keep" or (fits and not model.context.squeeze.any):
            it.shaped = Shaped(it.counts)
            return
        talk = await conversation.squeezed(it.prompt, model.context, model.counter, it.counts)
        if budget is None or limit is None or talk.counts.tokens <= limit or it.prompt.several:
            it.shaped = _shaped(it, talk, None, talk.counts)
        elif it.prompt.messages:
            memories = Memories(self._book, it) if model.context.strategy == "summarize" else None
            it.shaped = await _cut(it, replace(talk, memory=memories), budget, limit, memories)
        else:
            it.shaped = await _cut_plain(it, budget, limit)


def _shaped(
    it: Attempt, talk: Conversation, cut: Cut | None, counts: Counts, memories: Memories | None = None
) -> Shaped:
    cut = cut if cut is not None and cut.dropped_messages else None
    return Shaped(
        counts=counts,
        cut=cut,
        trimmed_tokens=max(0, it.counts.tokens - counts.tokens),
        edits=talk.edits(cut),
        summary="none" if memories is None or cut is None else memories.state(cut),
        boundary=None if memories is None or cut is None else memories.boundary(cut),
    )


async def _cut(it: Attempt, talk: Conversation, budget: int, limit: int, memories: Memories | None) -> Shaped:
    """The grid is the budget's alone: the limit may change with what is learned of the server, places do not."""
    made = await conversation.planned(talk, budget, limit)
    while True:
        cut, counts = await search(made, limit)
        if cut is not None:
            return _shaped(it, made, cut, counts, memories)
        deeper = await conversation.shortened_further(made, budget)
        if deeper is None:
            raise _overflow(it.model, counts, "even with all of the history dropped that may go")
        made = deeper


class Found(NamedTuple):
    cut: Cut | None
    counts: Counts
    """Exact, with this cut; without one, the smallest that was seen."""


async def search(made: Planned, limit: int) -> Found:
    """The smallest cut with which the exact count is in the limit."""
    searching = plan.search(made.cuts, made.counts.tokens, limit)
    tried = {made.cuts[0]: made.counts}
    try:
        cut = next(searching)
        while True:
            tried[cut] = await made.count(made.edits(cut))
            cut = searching.send(tried[cut].tokens)
    except StopIteration as found:
        chosen: Cut | None = found.value
    if chosen is not None:
        return Found(chosen, tried[chosen])
    return Found(None, min(tried.values(), key=lambda counts: counts.tokens))


async def _cut_plain(it: Attempt, budget: int, limit: int) -> Shaped:
    """One end of a plain prompt."""
    prompt, model, context = it.prompt, it.model, it.model.context
    text = plain.cuttable(prompt.fields)
    if text is None:
        raise _overflow(model, it.counts, "and this prompt is not one text that could be cut")
    tried = [it.counts]

    async def count(part: plain.Text) -> int:
        tried.append(await conversation.exact(model.counter, prompt.dialect.view(prompt, Edits(prompt=part))))
        return tried[-1].tokens

    measure = Texts(model.counter)
    if context.completions_keep == "tail":
        quantum = plan.quantum(budget, context.low_water)
        part = await plain.end_of(text, it.counts.tokens, limit, quantum, measure, count)
    else:
        part = await plain.beginning_of(text, it.counts.tokens, limit, measure, count)
    if part is None:
        raise _overflow(model, min(tried, key=lambda each: each.tokens), "even with all cut off that may go")
    await count(part)
    return Shaped(
        counts=tried[-1],
        trimmed_tokens=it.counts.tokens - tried[-1].tokens,
        edits=Edits(prompt=part),
    )


def _overflow(model: Model, counts: Counts, why: str) -> Overflow:
    return Overflow(
        tokens=counts.tokens,
        complete=True,
        limit=model.limit or 0,
        what=f"the context budget, {why}",
        status=model.context.overflow_status,
        advice="Shorten the last message, the tools or the system prompt.",
    )
