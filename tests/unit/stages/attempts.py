"""A request through the stages that count and shape, with a real tokenizer."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, cast

from backends.base import Backend, Target
from proxy.config import Cap, Context, Telemetry
from proxy.dialects.paths import DIALECTS
from proxy.dialects.prompt import Prompt
from proxy.exchange import ANONYMOUS, Attempt, Exchange, Limit, Model
from proxy.stages.count import Count
from proxy.stages.shape import Shape
from proxy.summaries import Summaries
from proxy.telemetry.metrics import Metrics
from proxy.tokens.counts import Counter
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)


@cache
def counter() -> Counter:
    return LocalCounter("gpt-4o", None, Memo(100_000), CountingPool(1))


@cache
def shaping() -> Shape:
    return Shape(Summaries(Metrics(Telemetry())))


def model(context: dict[str, Any], window: int | None = None, count: Counter | None = None) -> Model:
    return Model(
        name="m",
        entry="m",
        targets=(Target(cast(Backend, None), "m"),),  # nothing is sent in these tests
        counter=count or counter(),
        window=window,
        context=Context.model_validate({"strategy": "trim", **context}),
        cap=Cap(),
        fuse=None,
    )


def attempt(fields: dict[str, Any], model: Model, path: str = CHAT) -> Attempt:
    raw = json.dumps({"model": "m", **fields}).encode()
    exchange = Exchange("r", path, (), "", 0.0)
    exchange.candidates = [model]
    return Attempt(exchange, DIALECTS[path].parse(raw), ANONYMOUS, model, Limit())


async def shape(
    fields: dict[str, Any], path: str = CHAT, count: Counter | None = None, **context: Any
) -> Attempt:
    """The attempt after its counts and shape are made. `context` are keys of that section."""
    it = attempt(fields, model(context, count=count), path)
    await Count()(it)
    await shaping()(it)
    return it


def sent(attempt: Attempt) -> Prompt:
    """What leaves, read again as a server would."""
    dialect = attempt.prompt.dialect
    return dialect.parse(dialect.encode(attempt.prompt, attempt.shaped.edits))


def said(prompt: Prompt) -> list[str]:
    """Role and the beginning of each message."""
    return [f"{message['role']}: {str(message.get('content'))[:20]}" for message in prompt.messages]


def words(number: int, word: str = "word") -> str:
    """A text of about so many tokens."""
    return " ".join([word] * number)


def talk(turns: int, size: int = 100, *, system: str = "Be brief.") -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"{turn} {words(size)}"},
            {"role": "assistant", "content": f"{turn} {words(size)}"},
        ]
    return messages
