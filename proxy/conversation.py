"""A conversation as it would be sent: its squeezed texts, the places where it may be cut, and its exact counts.

The decisions are made in `proxy.history`; here they are asked for in turn, with a counter that must be awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from proxy.config import Context
from proxy.dialects.prompt import Edits, Place, Prompt
from proxy.history import oversize, plan, squeeze, turns
from proxy.history.plan import Cut
from proxy.history.validity import says_json
from proxy.tokens.counts import Counter, Counts

JSON_NOTE: Final = "[Answer in JSON, as was asked before.]"
"""OpenAI refuses the mode json_object where no message has the word; the cut may have dropped the one that had."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Before any cut. `texts` are squeezed: what they are does not change while the history grows."""

    prompt: Prompt
    context: Context
    counter: Counter
    layout: turns.Layout
    counts: Counts
    """Exact, of all that is left when nothing is cut."""
    texts: Mapping[Place, str] = field(default_factory=dict)
    memory: Callable[[Cut], str] | None = None
    """What is put in front of what a cut keeps, such as a summary; empty: nothing. Always the same for one cut."""

    def edits(self, cut: Cut | None = None) -> Edits:
        """All that leaves other than it came, with this cut."""
        messages = self.prompt.messages
        kept: Sequence[int] = range(len(messages)) if cut is None else plan.kept_indices(cut)
        repeats = self.repeats(kept)
        if repeats:
            kept = [i for i in kept if i not in repeats]
        if len(kept) == len(messages):
            return Edits(texts=self.texts)
        items = turns.kept_items(self.prompt.origin, kept)
        stays = set(items)
        texts = {place: text for place, text in self.texts.items() if place.item in stays}
        return Edits(kept=items, texts=texts, summary=self._front(cut))

    def repeats(self, kept: Sequence[int]) -> frozenset[int]:
        """Of the kept messages, those that say again what another one says."""
        if not self.context.squeeze.system_repeats:
            return frozenset()
        return squeeze.repeats(self.prompt.messages, self.layout, kept)

    async def count(self, edits: Edits) -> Counts:
        return await exact(self.counter, self.prompt.dialect.view(self.prompt, edits))

    def _front(self, cut: Cut | None) -> str | None:
        if cut is None or not cut.dropped_messages:
            return None
        memory = self.memory(cut) if self.memory is not None else ""
        note = JSON_NOTE if loses_json(self.prompt, cut) and "json" not in memory.lower() else ""
        return "\n\n".join(part for part in (memory, note) if part) or None


@dataclass(frozen=True, slots=True)
class Planned(Conversation):
    """The same with the places where it may be cut."""

    weights: Sequence[int] = ()
    cuts: Sequence[Cut] = ()
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Units that fit nowhere, by their number, and the tokens to which each of their texts is shortened."""


async def exact(counter: Counter, prompt: Prompt, limit: int | None = None) -> Counts:
    """The count, with every reason why the upstream may report another. `limit` as of `Counter.count`."""
    counts = await counter.count(prompt.chat, limit)
    return replace(counts, unsure=(*counts.unsure, *prompt.unsure)) if prompt.unsure else counts


def loses_json(prompt: Prompt, cut: Cut) -> bool:
    """Whether a cut takes the word that the mode json_object needs. Told by the past alone, so that it stays so."""
    form = prompt.chat.get("response_format")
    if not isinstance(form, Mapping) or form.get("type") != "json_object":
        return False
    before = [i for i in plan.kept_indices(cut) if i <= cut.resume]
    dropped = set(range(cut.resume)).difference(before)
    messages = prompt.messages
    return not any(says_json(messages[i]) for i in before) and any(says_json(messages[i]) for i in dropped)


class Texts:
    """Implements `proxy.history.squeeze.Measure` with a counter."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    async def tokens(self, text: str) -> int:
        return (await self._counter.count({"prompt": text, "add_special_tokens": False})).tokens

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        return await self._counter.clip(text, head_tokens, tail_tokens)


async def squeezed(prompt: Prompt, context: Context, counter: Counter, counts: Counts) -> Conversation:
    """With all that the config squeezes. `counts` is exact for the prompt as it came."""
    layout = turns.layout(prompt.messages, prompt.origin)
    talk = Conversation(prompt, context, counter, layout, counts)
    if not context.squeeze.any or not prompt.messages:
        return talk
    texts: dict[Place, str] = {}
    if context.squeeze.base64:
        texts = {place: squeeze.without_base64(text) for place, text in _said(prompt, ("user", "assistant"))}
    limit = context.squeeze.tool_output_tokens
    for place, text in prompt.dialect.tool_outputs(prompt):
        texts[place] = await _returned(text, context, limit, Texts(counter))
    talk = replace(talk, texts=_changed(prompt, texts))
    edits = talk.edits()
    return replace(talk, counts=await talk.count(edits)) if edits.of_history else talk


async def _returned(text: str, context: Context, limit_tokens: int | None, measure: squeeze.Measure) -> str:
    """What is sent of a tool's output."""
    if context.squeeze.base64:
        text = squeeze.without_base64(text)
    return text if limit_tokens is None else await squeeze.shortened(text, limit_tokens, measure)


def _said(prompt: Prompt, roles: Iterable[str]) -> list[tuple[Place, str]]:
    return squeeze.message_texts(prompt.items, roles)


def _changed(prompt: Prompt, texts: Mapping[Place, str]) -> dict[Place, str]:
    return {place: text for place, text in texts.items() if text != _at(prompt, place)}


def _at(prompt: Prompt, place: Place) -> object:
    value = prompt.items[place.item]
    for step in place.path:
        value = value[step]
    return value


async def planned(talk: Conversation, budget: int, limit: int) -> Planned:
    """The places for cuts. Where a unit would fit with none of them, its tool outputs are shortened."""
    made = await _weighed(talk, budget)
    room = await _room(made, limit)
    if room is None:
        return made
    quantum = plan.quantum(budget, talk.context.low_water)
    numbers = oversize.over(made.layout, made.weights, room)
    for size in oversize.sizes(budget):
        numbers = oversize.still_over(numbers, made.layout, made.weights, room, quantum)
        if not numbers:
            break
        made = await _shortened(made, budget, dict.fromkeys(numbers, size))
    return await _recounted(made) if made.texts != talk.texts else made


async def shortened_further(made: Planned, budget: int) -> Planned | None:
    """The last unit's texts one size shorter: weights may promise a little too much. None: nothing is left to do."""
    last = len(made.layout.units) - 1
    for size in oversize.sizes(budget):
        if last >= 0 and size < made.sizes.get(last, budget):
            deeper = await _shortened(made, budget, {last: size})
            if deeper.texts != made.texts:
                return await _recounted(deeper)
    return None


async def _weighed(talk: Conversation, budget: int) -> Planned:
    view = talk.prompt.dialect.view(talk.prompt, Edits(texts=talk.texts))
    weights = await talk.counter.weigh(view.chat, turns.spans(talk.layout))
    return Planned(
        prompt=talk.prompt,
        context=talk.context,
        counter=talk.counter,
        layout=talk.layout,
        counts=talk.counts,
        texts=talk.texts,
        memory=talk.memory,
        weights=weights,
        cuts=plan.cuts(talk.layout, weights, plan.quantum(budget, talk.context.low_water)),
    )


async def _recounted(made: Planned) -> Planned:
    return replace(made, counts=await made.count(made.edits()))


async def _room(made: Planned, limit: int) -> int | None:
    """What the head, tools and the rest leave of the limit. None: no unit is so large that it matters.

    By an exact count of the least that a template takes, since what the whole prompt has besides its weights
    is not the same at every turn (thinking that templates drop later, say).
    """
    layout, weights = made.layout, made.weights
    if not oversize.over(layout, weights, limit // 4 - sum(weights[: layout.head])):
        return None
    opener = next((unit for unit in reversed(layout.units) if unit.opens_turn), layout.units[-1])
    bare = [*range(layout.head), *range(opener.start, opener.end)]
    counts = await made.count(Edits(kept=turns.kept_items(made.prompt.origin, bare), texts=made.texts))
    room = limit - (counts.tokens - sum(weights[opener.start : opener.end]))
    return room - oversize.margin(room)


async def _shortened(made: Planned, budget: int, sizes: Mapping[int, int]) -> Planned:
    """With the texts of these units at most so many tokens each. The count is as it was."""
    prompt, context, measure = made.prompt, made.context, Texts(made.counter)
    if context.shorten_messages:
        sizes = oversize.with_pins(made.layout, sizes)
    units = made.layout.units
    limits = {
        item: size
        for number, size in sizes.items()
        for item in turns.kept_items(prompt.origin, range(units[number].start, units[number].end))
    }
    texts = dict(made.texts)
    for place, text in prompt.dialect.tool_outputs(prompt):
        if (size := limits.get(place.item)) is not None:
            least = min(size, context.squeeze.tool_output_tokens or size)
            texts[place] = await _returned(text, context, least, measure)
    if context.shorten_messages:
        for place, text in _said(prompt, ("user",)):
            if (size := limits.get(place.item)) is not None:
                texts[place] = await _returned(text, context, size, measure)
    again = await _weighed(replace(made, texts=_changed(prompt, texts)), budget)
    return replace(again, sizes={**made.sizes, **sizes})
