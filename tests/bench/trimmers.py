"""Ways to make a history fit: ours, by the stages of the proxy, and those of others. Each takes and gives messages."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from proxy.errors import Overflow
from proxy.exchange import Model
from proxy.stages.cap import Cap
from proxy.stages.count import Count
from tests.bench.histories import TOOLS, History
from tests.bench.served import Served
from tests.unit.stages.attempts import attempt, model, shaping

BUDGET = 4000
REPLY = 256
WINDOW = BUDGET + REPLY
"""What the server enforces: prompt and max_tokens together."""

Trim: TypeAlias = Callable[[History], Awaitable[tuple[History, int] | None]]
"""The messages that are sent on and their `max_tokens`; None: refused."""


def chatfuse(served: Served, low_water: float, **context: Any) -> Trim:
    settings = {"budget_tokens": BUDGET, "low_water": low_water, **context}
    one: Model = model(settings, window=WINDOW, count=served.counter)

    async def trim(history: History) -> tuple[History, int] | None:
        it = attempt({"messages": history, "tools": TOOLS, "max_tokens": REPLY}, one)
        try:
            for stage in (Count(), shaping(), Cap()):
                await stage(it)
        except Overflow:
            return None
        sent = json.loads(it.prompt.dialect.encode(it.prompt, it.shaped.edits))
        return sent["messages"], it.max_tokens.value or REPLY

    return trim


def drop_oldest(served: Served) -> Trim:
    """Whole turns, oldest first, each request anew: what most clients do."""

    async def trim(history: History) -> tuple[History, int] | None:
        kept = list(history)
        while served.tokens(kept) > BUDGET:
            opens = [i for i in range(2, len(kept)) if kept[i]["role"] == "user"]
            if not opens:
                return None
            del kept[1 : opens[0]]
        return kept, REPLY

    return trim


def langchain(served: Served, **options: Any) -> Trim:
    """Raises ImportError where it is not installed."""
    from langchain_core.messages import (  # type: ignore[import-not-found, unused-ignore]
        convert_to_messages,
        convert_to_openai_messages,
        trim_messages,
    )

    def count(messages: Any) -> int:
        return served.tokens(_with_ids(convert_to_openai_messages(messages)))

    async def trim(history: History) -> tuple[History, int] | None:
        kept = trim_messages(
            convert_to_messages(history),
            max_tokens=BUDGET,
            token_counter=count,
            strategy="last",
            include_system=True,
            **options,
        )
        return _with_ids(convert_to_openai_messages(kept)), REPLY

    return trim


def _with_ids(messages: Any) -> History:
    return [{**message} for message in messages]


def litellm() -> Trim:
    """Raises ImportError where it is not installed."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches its prices when imported
    from litellm.utils import trim_messages  # type: ignore[import-not-found, unused-ignore]

    async def trim(history: History) -> tuple[History, int] | None:
        kept = trim_messages([dict(message) for message in history], model="gpt-4o", max_tokens=BUDGET)
        return list(kept), REPLY

    return trim
