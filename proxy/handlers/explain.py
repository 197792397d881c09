"""`POST /chatfuse/explain`: what would be done with a request. Nothing is sent upstream.

The body is that of a chat request; with `?dialect=completions`, `responses` or `messages`, of that path's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import orjson

from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Dialect
from proxy.dialects.responses import RESPONSES
from proxy.errors import InvalidRequest, ProxyError
from proxy.exchange import Attempt, Exchange
from proxy.handlers.call import Call
from proxy.history import turns
from proxy.history.plan import kept_indices
from proxy.stages.identify import shown

_DIALECTS: Mapping[str, Dialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}


async def handle(call: Call) -> None:
    call.runtime.keys.identify(call.headers)
    exchange = call.exchange()
    exchange.body = await call.read_body()
    exchange.path = asked_dialect(call.path).path
    await call.runtime.admission.run(exchange)
    attempts = []
    for model in exchange.candidates:
        attempt = exchange.attempt(model)
        refusal: ProxyError | None = None
        try:
            await call.runtime.fitting.run(attempt)
        except ProxyError as error:
            refusal = error
        attempts.append(await explain(attempt, refusal))
    body = {**attempts[0], "fallbacks": attempts[1:], "stages_ms": _milliseconds(exchange)}
    await call.answer_json(200, orjson.dumps(body, option=orjson.OPT_INDENT_2))


def asked_dialect(path: str) -> Dialect:
    """By the query. Raises InvalidRequest for one that is not known."""
    name = parse_qs(path.partition("?")[2]).get("dialect", ["chat"])[-1]
    if name not in _DIALECTS:
        raise InvalidRequest(
            f"dialect must be one of {', '.join(_DIALECTS)}, not {shown(name)}", param="dialect"
        )
    return _DIALECTS[name]


async def explain(attempt: Attempt, refusal: ProxyError | None) -> dict[str, Any]:
    """The decisions of each stage that ran, as plain data. Holds no message text."""
    model, prompt, limit = attempt.model, attempt.prompt, attempt.limit
    out: dict[str, Any] = {
        "model": model.name,
        "window": model.window,
        "budget": model.budget,
        "strategy": model.context.strategy,
        "refused": None
        if refusal is None
        else {"status": refusal.http_status, "code": refusal.error_code, "message": refusal.message},
    }
    if hasattr(attempt, "counts"):
        # A refusal costs the limit's tokens and no more: then the messages are not weighed one by one.
        weights: Sequence[int | None] = [None] * len(prompt.messages)
        if attempt.counts.complete and prompt.messages:
            layout = turns.layout(prompt.messages, prompt.origin)
            weights = await model.counter.weigh(prompt.chat, turns.spans(layout))
        out["tokens"] = attempt.counts.tokens
        out["complete"] = attempt.counts.complete
        out["exact"] = attempt.counts.exact
        out["unsure"] = list(attempt.counts.unsure)
        out["messages"] = [
            {"index": i, "role": message.get("role"), "tokens": weight, "characters": characters(message)}
            for i, (message, weight) in enumerate(zip(prompt.messages, weights, strict=True))
        ]
        out["fuse"] = {
            "max_context_tokens": limit.max_context_tokens,
            "mode": "enforce" if limit.enforced else "observe",
            "verdict": getattr(attempt, "fuse_status", None),
        }
    if hasattr(attempt, "shaped"):
        cut = attempt.shaped.cut
        kept = list(range(len(prompt.messages))) if cut is None else kept_indices(cut)
        out["cut"] = {
            "tokens_in": attempt.shaped.counts.tokens,
            "trimmed_tokens": attempt.shaped.trimmed_tokens,
            "dropped_turns": attempt.shaped.dropped_turns,
            "dropped_messages": len(prompt.messages) - len(kept),
            "first_kept": next((i for i in kept if i >= turns.layout(prompt.messages).head), None),
        }
    if hasattr(attempt, "max_tokens"):
        out["max_tokens"] = {
            "value": attempt.max_tokens.value,
            "name": attempt.max_tokens.name,
            "asked": prompt.caps,
            "clamped": attempt.max_tokens.clamped or None,
        }
    if hasattr(attempt, "targets"):
        out["targets"] = [{"backend": t.backend.name, "model": t.model} for t in attempt.targets]
    return out


def characters(message: Any) -> int:
    """Characters of a message's text, parts included."""
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part if isinstance(part, str) else part.get("text") for part in content)
    return sum(len(text) for text in texts if isinstance(text, str))


def _milliseconds(exchange: Exchange) -> dict[str, float]:
    return {name: round(seconds * 1000, 3) for name, seconds in exchange.timings.items()}
