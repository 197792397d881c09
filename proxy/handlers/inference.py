"""Endpoints that name a `model` but are not chat: sent to that model's backend, the body untouched.

What cannot be read, or names no model, goes the way of any other path: the upstream judges.
"""

from __future__ import annotations

from typing import Any

import orjson

from backends.base import Target, UpstreamRequest
from proxy.dialects import body as bodies
from proxy.dialects import spans
from proxy.errors import InvalidRequest, ModelNotFound
from proxy.handlers import passthrough
from proxy.handlers.call import Call
from proxy.stages.identify import check_model, shown
from proxy.stages.parse import content_codings


async def handle(call: Call) -> None:
    runtime = call.runtime
    caller, _ = runtime.keys.identify(call.headers)
    raw = await call.read_body()
    fields = readable(raw) if not content_codings(call.headers) else None
    model = fields.get("model") if fields is not None else None
    if not isinstance(model, str):
        backend = runtime.passthrough.backend
        if backend is None or not runtime.passthrough.allows("POST", call.route):
            raise InvalidRequest("model must be a non-empty string, and the body JSON", param="model")
        await passthrough.relay(call, backend, UpstreamRequest("POST", call.path, call.headers, raw))
        return
    bodies.check_name(model)
    if bodies.may_repeat(raw, fields or {}, (b'"model"',)):
        refuse_repeated_model(raw)
    found = runtime.catalog.find(model, caller.name, None)
    if not found:
        raise ModelNotFound(f"the model {shown(model)} is not served here", param="model")
    check_model(caller, model)
    target = found[0].targets[0]
    call.fields.append(("x-chatfuse-model", model))
    body = raw if target.model == model else renamed(raw, target)
    await passthrough.relay(call, target.backend, UpstreamRequest("POST", call.path, call.headers, body))


def readable(raw: bytes) -> dict[str, Any] | None:
    try:
        return bodies.parse(raw)
    except InvalidRequest:
        return None


def renamed(raw: bytes, target: Target) -> bytes:
    """The body with the name that the model has upstream."""
    text = bodies.decode(raw)
    splice = spans.set_member(text, spans.scan_object(text), "model", orjson.dumps(target.model).decode())
    return bodies.encode(spans.apply(text, [splice]))


def refuse_repeated_model(raw: bytes) -> None:
    """The allow list would judge one name and the upstream serve the other. Raises InvalidRequest."""
    keys = [member.key for member in spans.scan_object(bodies.decode(raw))]
    if keys.count("model") > 1:
        raise InvalidRequest("the key 'model' is given twice", param="model")
