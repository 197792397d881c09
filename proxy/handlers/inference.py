"""Endpoints that name a `model` but generate nothing: sent to that model's backend, the body untouched.

What cannot be read, or names no model, goes the way of any other path: the upstream judges.
"""

from __future__ import annotations

from typing import Any

import orjson

from backends.base import Target, UpstreamRequest
from proxy.dialects import body as bodies
from proxy.dialects import spans
from proxy.errors import InvalidRequest, ModelNotFound, TooLarge
from proxy.exchange import Caller
from proxy.handlers import passthrough
from proxy.handlers.call import Call
from proxy.handlers.tally import Tally, tallied
from proxy.stages.identify import check_model, shown
from proxy.stages.parse import content_codings


async def handle(call: Call) -> None:
    with tallied(call.runtime.metrics) as tally:
        await _handle(call, tally)


async def _handle(call: Call, tally: Tally) -> None:
    runtime = call.runtime
    caller, _ = runtime.keys.identify(call.headers)
    raw = await call.read_body()
    plain = unpacked(call, raw)
    fields = readable(plain)
    model = fields.get("model")
    if not isinstance(model, str):
        await unnamed(call, caller, raw, tally)
        return
    bodies.check_name(model)
    # The allow list would judge one name and the upstream serve the other.
    bodies.refuse_repeated(plain, fields, ("model",))
    found = runtime.catalog.find(model, caller.name, None)
    if not found:
        raise ModelNotFound(f"the model {shown(model)} is not served here", param="model")
    check_model(caller, model)
    target = found[0].targets[0]
    call.fields.append(("x-chatfuse-model", model))
    headers = call.headers
    if target.model != model:
        raw = renamed(plain, target)
        headers = [(n, v) for n, v in headers if n.lower() != "content-encoding"]
    await passthrough.relay(call, target.backend, UpstreamRequest("POST", call.path, headers, raw), tally)


async def unnamed(call: Call, caller: Caller, raw: bytes, tally: Tally) -> None:
    """No model that we can see. The upstream may see one, so it is not for a caller whose models are limited."""
    rules = call.runtime.passthrough
    if rules.backend is None or not rules.allows("POST", call.route, caller) or ("*" not in caller.models):
        raise InvalidRequest("model must be a non-empty string, and the body JSON", param="model")
    await passthrough.relay(call, rules.backend, UpstreamRequest("POST", call.path, call.headers, raw), tally)


def unpacked(call: Call, raw: bytes) -> bytes:
    """The body without its content codings; empty when they cannot be undone. Raises TooLarge."""
    codings = content_codings(call.headers)
    if not codings:
        return raw
    try:
        return bodies.unpack(raw, codings, call.runtime.config.server.max_body_bytes)
    except TooLarge:
        raise
    except InvalidRequest:
        return b""


def model_of(raw: bytes) -> str | None:
    model = readable(raw).get("model")
    return model if isinstance(model, str) else None


def readable(raw: bytes) -> dict[str, Any]:
    try:
        return bodies.parse(raw)
    except InvalidRequest:
        return {}


def renamed(raw: bytes, target: Target) -> bytes:
    """The body with the name that the model has upstream."""
    text = bodies.decode(raw)
    splice = spans.set_member(text, bodies.members(text), "model", orjson.dumps(target.model).decode())
    return bodies.encode(spans.apply(text, [splice]))
