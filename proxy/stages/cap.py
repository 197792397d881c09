"""Cap the completion: what the client asked, the configured ceiling, and the room that the prompt leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy import config
from proxy.dialects.chat import is_reasoning
from proxy.errors import InvalidRequest, Overflow
from proxy.exchange import Attempt, MaxTokens


class Cap:
    async def __call__(self, it: Attempt) -> None:
        model, prompt = it.model, it.prompt
        reasoning = is_reasoning(model.targets[0].model)
        window = model.room_window
        tokens = await _longest(it) if prompt.several and window else it.shaped.counts.tokens
        room = None if window is None or prompt.may_be_cut else window - tokens
        floor = minimum(model.cap, reasoning)
        # Alone, with nothing to change, the upstream judges; else the next model may have the room.
        judges = model.context.strategy == "keep" and not prompt.caps and len(it.exchange.candidates) == 1
        if room is not None and room < floor and not judges:
            raise Overflow(
                tokens=tokens + floor,
                complete=it.shaped.counts.complete,
                limit=window or 0,
                what=f"the window, with at least {floor} tokens left for the completion",
                status=model.context.overflow_status,
            )
        names = prompt.dialect.cap_names(reasoning=reasoning)
        it.max_tokens = ceiling(prompt.caps, model.cap, room, names, reasoning=reasoning)


async def _longest(it: Attempt) -> int:
    """Of several prompts in one request, each has the window for itself."""
    chat, counter = it.prompt.chat, it.model.counter
    return max([(await counter.count({**chat, "prompt": each})).tokens for each in chat["prompt"]])


def minimum(cap: config.Cap, reasoning: bool) -> int:
    """Less room than this for the completion is an overflow."""
    own = cap.reasoning_min_tokens if reasoning else None
    return own or cap.min_tokens or 1


def ceiling(
    asked: Mapping[str, Any], cap: config.Cap, room: int | None, names: Sequence[str], *, reasoning: bool
) -> MaxTokens:
    """The smallest of the three. Nothing asked and nothing configured: nothing is put in.

    The client keeps the fields it used, and each of them is lowered that is above, since servers differ in
    which one they read. `names` are those that the API itself has for it: the first is put in where the client
    used none of them. Raises InvalidRequest for a cap that cannot be compared with a limit in force; where
    there is none, the upstream judges it.
    """
    top = (cap.reasoning_max_tokens if reasoning else None) or cap.max_tokens
    limits = [limit for limit in (top, room) if limit is not None]
    if not asked:
        default = (cap.reasoning_default_tokens if reasoning else None) or cap.default_tokens or top
        value = min(limit for limit in (default, *limits) if limit is not None) if default else 0
        if value < 1:
            # Nothing to put in; or over the window and sent on all the same (strategy keep): upstream judges.
            return MaxTokens(None, None)
        return MaxTokens(value, names[0], written={names[0]: value})
    if not limits:
        name, given = next(iter(asked.items()))
        return MaxTokens(given if isinstance(given, int) else None, name)
    limit = min(limits)
    numbers = {name: _number(name, given, limit) for name, given in asked.items()}
    lowered = {name: limit for name, number in numbers.items() if number > limit}
    name = min(numbers, key=lambda each: numbers[each])
    value = min(numbers[name], limit)
    put_in = {}
    if top is not None and not any(each in asked for each in names):
        # A name that only some servers read would else be a way around the ceiling.
        put_in = {names[0]: value}
    by_room = room is not None and limit == room
    return MaxTokens(
        value=value,
        name=name,
        clamped="" if not lowered else "room" if by_room else "ceiling",
        written=lowered | put_in,
    )


def _number(name: str, given: Any, limit: int) -> int:
    """The client's cap as a number. Negative ones mean "without end" to llama.cpp and vLLM's completions."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given if given >= 0 else limit + 1
    if isinstance(given, float) and given.is_integer():
        return int(given)
    raise InvalidRequest(f"{name} must be a whole number (the limit here is {limit})", param=name)
