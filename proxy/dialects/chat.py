"""`/v1/chat/completions`. Pure.

Source: OpenAI's API reference, "Create chat completion". Only what the proxy acts on is read and checked;
everything else passes for the upstream to judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects import fields as read
from proxy.dialects import items
from proxy.dialects.body import type_name
from proxy.dialects.prompt import Edits, Place, Prompt, Usage, event
from proxy.errors import InvalidRequest, ProxyError

_ENFORCED = frozenset(("model", "messages", "stream", "stream_options", *read.CAPS))
_REASONING = re.compile(r"^(?:ft:)?(?:[^/]+/)?(?:o[1-9](?![a-z0-9])|gpt-5(?!.*chat))", re.IGNORECASE)
_RESULTS = ("tool", "function")


def is_reasoning(model: str) -> bool:
    """Whether this is one of OpenAI's reasoning models, which refuse `max_tokens` (API reference)."""
    return _REASONING.match(model) is not None


class Chat:
    """Items are the messages, and the chat view is the body itself."""

    path = "/v1/chat/completions"

    def parse(self, raw: bytes) -> Prompt:
        fields = read.read(raw, _ENFORCED)
        model = read.model(fields)
        messages = _messages(fields)
        return Prompt(
            dialect=self,
            raw=raw,
            fields=fields,
            model=model,
            stream=read.flag(fields, "stream"),
            asks_usage=read.asks_usage(fields),
            caps=read.caps(fields, read.CAPS),
            items=messages,
            chat=fields,
            may_be_cut=read.may_be_cut(fields),
        )

    def view(self, prompt: Prompt, edits: Edits) -> Prompt:
        if not edits.of_history:
            return prompt
        messages = items.edited(prompt.items, edits, "text")
        fields = {**prompt.fields, "messages": messages}
        return replace(prompt, fields=fields, items=messages, chat=fields)

    def encode(self, prompt: Prompt, edits: Edits) -> bytes:
        return items.encode(prompt, edits, "messages", "text")

    def tool_outputs(self, prompt: Prompt) -> Sequence[tuple[Place, str]]:
        return [
            found
            for i, message in enumerate(prompt.items)
            if message.get("role") in _RESULTS
            for found in items.texts_of(message.get("content"), i, ("content",))
        ]

    def cap_names(self, *, reasoning: bool) -> Sequence[str]:
        """OpenAI's reasoning models refuse `max_tokens`; many servers know nothing else."""
        names = ("max_completion_tokens", "max_tokens")
        return names if reasoning else names[::-1]

    def usage(self, value: Any) -> Usage | None:
        return usage(value)

    def error_body(self, error: ProxyError) -> bytes:
        return error.body()

    def error_event(self, body: bytes) -> bytes:
        return event(body)


def usage(value: Any) -> Usage | None:
    """`usage` as OpenAI's chat and plain completions report it."""
    found = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details")
    return Usage(
        prompt=read.number(found, "prompt_tokens"),
        completion=read.number(found, "completion_tokens"),
        cached=read.number(details, "cached_tokens") if isinstance(details, dict) else None,
    )


def _messages(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest(
            f"messages must be an array, not {read.what(fields, 'messages')}", param="messages"
        )
    if not messages:
        raise InvalidRequest("messages must hold at least one message, not 0", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(
                f"messages[{i}] must be an object, not {type_name(message)}", param=f"messages[{i}]"
            )
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{i}].role must be a string, not {read.what(message, 'role')}",
                param=f"messages[{i}].role",
            )
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise InvalidRequest(
                f"messages[{i}].content must be a string, an array of parts or null, not {type_name(content)}",
                param=f"messages[{i}].content",
            )
        for j, part in enumerate(content):
            if not isinstance(part, dict | str):
                raise InvalidRequest(
                    f"messages[{i}].content[{j}] must be an object, not {type_name(part)}",
                    param=f"messages[{i}].content[{j}]",
                )
    return messages


CHAT = Chat()
