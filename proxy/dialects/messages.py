"""Anthropic's `/v1/messages`. Pure.

Source: Anthropic's API reference, "Messages" and "Errors". Only what the proxy acts on is read and checked;
everything else passes for the upstream to judge. How messages become chat messages is in `messages_chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.dialects import body as bodies
from proxy.dialects import fields as read
from proxy.dialects import items, messages_chat, spans
from proxy.dialects.body import type_name
from proxy.dialects.prompt import Edits, Place, Prompt, Usage, event
from proxy.errors import InvalidRequest, ProxyError

CAP = "max_tokens"
_CAPS = (CAP, *(name for name in read.CAPS if name != CAP))
_ENFORCED = frozenset(("model", "messages", "system", "stream", *_CAPS))

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status, as in "Errors"; 503 is our "not now". Any other is one of the client's, or one of the API's."""


class Messages:
    """Items are the messages."""

    path = "/v1/messages"

    def parse(self, raw: bytes) -> Prompt:
        fields = read.read(raw, _ENFORCED)
        model = read.model(fields)
        _check_content(fields.get("system"), "system")
        found = _messages(fields)
        made = messages_chat.convert(fields, found)
        return Prompt(
            dialect=self,
            raw=raw,
            fields=fields,
            model=model,
            stream=read.flag(fields, "stream"),
            asks_usage=True,
            caps=read.caps(fields, _CAPS),
            items=found,
            chat=made.chat,
            origin=made.origin,
            unsure=made.unsure,
        )

    def view(self, prompt: Prompt, edits: Edits) -> Prompt:
        if not edits.of_history:
            return prompt
        new = items.edited(prompt.items, edits, "text")
        made = messages_chat.convert(prompt.fields, new)
        fields = {**prompt.fields, "messages": new}
        return replace(
            prompt, fields=fields, items=new, chat=made.chat, origin=made.origin, unsure=made.unsure
        )

    def encode(self, prompt: Prompt, edits: Edits) -> bytes:
        """A cap that is lowered to the budget for thinking lowers that too: it has to be the smaller one."""
        encoded = items.encode(prompt, edits, "messages", "text")
        budget = _budget(prompt.fields, edits.caps.get(CAP))
        return encoded if budget is None else _with_budget(encoded, budget)

    def tool_outputs(self, prompt: Prompt) -> Sequence[tuple[Place, str]]:
        return [
            found
            for i, message in enumerate(prompt.items)
            for j, block in enumerate(messages_chat.blocks(message))
            if block.get("type") == "tool_result"
            for found in items.texts_of(block.get("content"), i, ("content", j, "content"))
        ]

    def cap_names(self, *, reasoning: bool) -> Sequence[str]:
        return (CAP,)

    def usage(self, value: Any) -> Usage | None:
        """Of a message, of `message_start`, which holds one, and of `message_delta`."""
        if not isinstance(value, dict):
            return None
        message = value.get("message")
        found = (message if isinstance(message, dict) else value).get("usage")
        if not isinstance(found, dict):
            return None
        fresh = read.number(found, "input_tokens")
        written = read.number(found, "cache_creation_input_tokens") or 0
        cached = read.number(found, "cache_read_input_tokens")
        return Usage(
            prompt=None if fresh is None else fresh + written + (cached or 0),
            completion=read.number(found, "output_tokens"),
            cached=cached,
        )

    def error_body(self, error: ProxyError) -> bytes:
        return error_body(error.http_status, error.message)

    def error_event(self, body: bytes) -> bytes:
        return event(body, b"error")


MIN_BUDGET_TOKENS = 1024
"""The least that `thinking.budget_tokens` may be (API reference)."""


def _budget(fields: Mapping[str, Any], cap: int | None) -> int | None:
    """What the budget becomes under a lowered cap: the same share of it. None: it stays."""
    thinking, asked = fields.get("thinking"), fields.get(CAP)
    if cap is None or not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return None
    budget = read.number(thinking, "budget_tokens")
    if budget is None or budget < cap or cap <= MIN_BUDGET_TOKENS:
        return None
    share = budget * cap // asked if isinstance(asked, int) and asked > budget else 0
    return max(MIN_BUDGET_TOKENS, min(share, cap - 1))


def _with_budget(raw: bytes, budget: int) -> bytes:
    text = bodies.decode(raw)
    where = spans.locate(text, (0, len(text)), ("thinking", "budget_tokens"))
    return bodies.encode(spans.apply(text, [spans.Splice(*where, str(budget))]))


def error_body(status: int, message: str) -> bytes:
    other = "invalid_request_error" if status < 500 else "api_error"
    error = {"type": ERROR_TYPES.get(status, other), "message": message}
    return orjson.dumps({"type": "error", "error": error})


def _messages(fields: Mapping[str, Any]) -> list[Any]:
    found = fields.get("messages")
    if not isinstance(found, list):
        raise InvalidRequest(
            f"messages must be an array, not {read.what(fields, 'messages')}", param="messages"
        )
    if not found:
        raise InvalidRequest("messages must hold at least one message, not 0", param="messages")
    for i, message in enumerate(found):
        place = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"{place} must be an object, not {type_name(message)}", param=place)
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"{place}.role must be a string, not {read.what(message, 'role')}", param=f"{place}.role"
            )
        _check_content(message.get("content"), f"{place}.content")
    return found


def _check_content(content: Any, place: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{place} must be a string or an array of blocks, not {type_name(content)}", param=place
        )
    for j, block in enumerate(content):
        if not isinstance(block, dict):
            raise InvalidRequest(
                f"{place}[{j}] must be an object, not {type_name(block)}", param=f"{place}[{j}]"
            )


MESSAGES = Messages()
