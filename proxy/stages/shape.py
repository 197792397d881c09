"""Make the conversation fit its budget: where the cut is, and the exact count of what is left."""

from __future__ import annotations

from proxy.errors import Overflow
from proxy.exchange import Attempt, Shaped
from proxy.history import plan, turns
from proxy.tokens.counts import Counts


class Shape:
    async def __call__(self, it: Attempt) -> None:
        model, budget = it.model, it.model.budget
        if model.context.strategy == "keep" or budget is None or it.counts.tokens <= budget:
            it.shaped = Shaped(it.counts)
            return
        messages, counter = it.prompt.messages, model.counter
        layout = turns.layout(messages)
        cuts = plan.cuts(
            layout,
            await counter.weigh(it.prompt.fields, turns.spans(layout)),
            plan.quantum(budget, model.context.low_water),
        )
        search = plan.search(cuts, it.counts.tokens, budget)
        counts = it.counts
        tried: dict[plan.Cut, Counts] = {}
        smallest = counts
        try:
            cut = next(search)
            while True:
                kept = [messages[i] for i in plan.kept_indices(cut)]
                counts = tried[cut] = await counter.count({**it.prompt.fields, "messages": kept})
                if counts.tokens < smallest.tokens:
                    smallest = counts
                cut = search.send(counts.tokens)
        except StopIteration as found:
            chosen: plan.Cut | None = found.value
        if chosen is None:
            raise Overflow(
                tokens=smallest.tokens,
                complete=True,
                limit=budget,
                what="the context budget, even with all of the history dropped that may go",
                status=model.context.overflow_status,
                advice="Shorten the last message, the tools or the system prompt.",
            )
        it.shaped = Shaped(tried[chosen], chosen, it.counts.tokens - tried[chosen].tokens)
