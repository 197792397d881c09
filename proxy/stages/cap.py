"""Cap the completion: what the client asked, the configured ceiling, and the room that the prompt leaves."""

from __future__ import annotations

from proxy import config
from proxy.dialects.chat import CapField, is_reasoning
from proxy.errors import Overflow
from proxy.exchange import Attempt, MaxTokens


class Cap:
    async def __call__(self, it: Attempt) -> None:
        model, prompt = it.model, it.prompt
        reasoning = is_reasoning(model.targets[0].model)
        room = None if model.window is None else model.window - it.shaped.counts.tokens
        floor = minimum(model.cap, reasoning)
        if room is not None and room < floor and (model.context.strategy != "keep" or prompt.cap is not None):
            raise Overflow(
                tokens=it.shaped.counts.tokens + floor,
                complete=it.shaped.counts.complete,
                limit=model.window or 0,
                what=f"the window, with at least {floor} tokens left for the completion",
                status=model.context.overflow_status,
            )
        it.max_tokens = ceiling(prompt.cap, prompt.cap_field, model.cap, room, reasoning=reasoning)


def minimum(cap: config.Cap, reasoning: bool) -> int:
    """Less room than this for the completion is an overflow."""
    own = cap.reasoning_min_tokens if reasoning else None
    return own or cap.min_tokens or 1


def ceiling(
    asked: int | None, field: CapField | None, cap: config.Cap, room: int | None, *, reasoning: bool
) -> MaxTokens:
    """The smallest of the three. Nothing asked and nothing configured: nothing is put in.

    The client keeps the field it used. A cap of ours is put in as `max_completion_tokens` for OpenAI's
    reasoning models, which refuse `max_tokens`.
    """
    top = cap.max_tokens
    default = cap.default_tokens
    if reasoning:
        top = cap.reasoning_max_tokens or top
        default = cap.reasoning_default_tokens or default
    if asked is None:
        value = default if default is not None else top
        if value is None:
            return MaxTokens(None, None)
        value = min(v for v in (value, top, room) if v is not None)
        if value < 1:
            # Over the window, and sent on all the same (strategy keep): the upstream's own error is the answer.
            return MaxTokens(None, None)
        return MaxTokens(value, "max_completion_tokens" if reasoning else "max_tokens", changed=True)
    value = min(v for v in (asked, top, room) if v is not None)
    if value == asked:
        return MaxTokens(asked, field)
    by_room = room is not None and value == room
    return MaxTokens(value, field, clamped="room" if by_room else "ceiling", changed=True)
