"""`/v1/responses`. Pure.

Source: OpenAI's API reference, "Create a model response". Only what the proxy acts on is read and checked;
everything else passes for the upstream to judge. How items become chat messages is in `responses_chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.dialects import fields as read
from proxy.dialects import items, responses_chat
from proxy.dialects.body import type_name
from proxy.dialects.prompt import Edits, Place, Prompt, Usage, event
from proxy.errors import InvalidRequest, ProxyError

CAP = "max_output_tokens"
_CAPS = (CAP, *read.CAPS)
_ENFORCED = frozenset(("model", "input", "stream", *_CAPS))


class Responses:
    """Items are those of `input`; an `input` that is a string is one item."""

    path = "/v1/responses"

    def parse(self, raw: bytes) -> Prompt:
        fields = read.read(raw, _ENFORCED)
        model = read.model(fields)
        found = _items(fields)
        made = responses_chat.convert(fields, found)
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
            may_be_cut=fields.get("truncation") == "auto",
            unsure=made.unsure,
        )

    def view(self, prompt: Prompt, edits: Edits) -> Prompt:
        if not edits.of_history:
            return prompt
        new = items.edited(prompt.items, edits, "input_text")
        value: Any = new[0] if isinstance(prompt.fields.get("input"), str) else new
        fields = {**prompt.fields, "input": value}
        made = responses_chat.convert(fields, new)
        return replace(
            prompt, fields=fields, items=new, chat=made.chat, origin=made.origin, unsure=made.unsure
        )

    def encode(self, prompt: Prompt, edits: Edits) -> bytes:
        return items.encode(prompt, edits, "input", "input_text")

    def tool_outputs(self, prompt: Prompt) -> Sequence[tuple[Place, str]]:
        return [
            found
            for i, item in enumerate(prompt.items)
            if isinstance(item, dict) and responses_chat.is_output(item)
            for found in items.texts_of(item.get("output"), i, ("output",))
        ]

    def cap_names(self, *, reasoning: bool) -> Sequence[str]:
        return (CAP,)

    def usage(self, value: Any) -> Usage | None:
        """Of a response, or of the event that ends a stream, which holds the response."""
        if not isinstance(value, dict):
            return None
        response = value.get("response")
        found = (response if isinstance(response, dict) else value).get("usage")
        if not isinstance(found, dict):
            return None
        details = found.get("input_tokens_details")
        return Usage(
            prompt=read.number(found, "input_tokens"),
            completion=read.number(found, "output_tokens"),
            cached=read.number(details, "cached_tokens") if isinstance(details, dict) else None,
        )

    def error_body(self, error: ProxyError) -> bytes:
        return error.body("input")

    def error_event(self, body: bytes) -> bytes:
        """OpenAI's streaming events, `error`: what an error object holds, without the object around it."""
        try:
            error = orjson.loads(body)["error"]
            told = {key: error.get(key) for key in ("code", "message", "param")}
        except (ValueError, KeyError, TypeError, AttributeError):
            return event(body, b"error")
        return event(orjson.dumps({"type": "error", **told, "sequence_number": 0}), b"error")


def _items(fields: Mapping[str, Any]) -> list[Any]:
    given = fields.get("input")
    if given is None:
        return []  # a stored prompt or conversation has it all
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise InvalidRequest(
            f"input must be a string or an array of items, not {type_name(given)}", param="input"
        )
    for i, item in enumerate(given):
        place = f"input[{i}]"
        if not isinstance(item, dict):
            raise InvalidRequest(f"{place} must be an object, not {type_name(item)}", param=place)
        kind = item.get("type")
        if kind is not None and not isinstance(kind, str):
            raise InvalidRequest(
                f"{place}.type must be a string, not {type_name(kind)}", param=f"{place}.type"
            )
        if kind in (None, "message"):
            _check_message(item, place)
    return given


def _check_message(item: Mapping[str, Any], place: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role is not None and not isinstance(role, str):
        raise InvalidRequest(f"{place}.role must be a string, not {type_name(role)}", param=f"{place}.role")
    if content is not None and not isinstance(content, str | list):
        raise InvalidRequest(
            f"{place}.content must be a string or an array of parts, not {type_name(content)}",
            param=f"{place}.content",
        )
    for j, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict):
            where = f"{place}.content[{j}]"
            raise InvalidRequest(f"{where} must be an object, not {type_name(part)}", param=where)


RESPONSES = Responses()
