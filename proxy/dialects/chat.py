"""`/v1/chat/completions`: a typed view over the raw JSON, and the edits that can be made to it. Pure.

Source: OpenAI's API reference, "Create chat completion". Only what the proxy acts on is read and checked;
everything else passes for the upstream to judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.dialects import body as bodies
from proxy.dialects import spans
from proxy.dialects.body import type_name
from proxy.errors import InvalidRequest

CAP_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")
"""Every name under which a server may read the completion's cap; `n_predict` is llama.cpp's."""

_ENFORCED = frozenset(("model", "messages", "stream", "stream_options", *CAP_FIELDS))
_REASONING = re.compile(r"^(?:ft:)?(?:[^/]+/)?(?:o[1-9](?![a-z0-9])|gpt-5(?!.*chat))", re.IGNORECASE)


def is_reasoning(model: str) -> bool:
    """Whether this is one of OpenAI's reasoning models, which refuse `max_tokens` (API reference)."""
    return _REASONING.match(model) is not None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A parsed chat request. `fields` is the parsed body: to be read, never changed."""

    raw: bytes
    fields: Mapping[str, Any]
    model: str
    messages: Sequence[Mapping[str, Any]]
    stream: bool
    asks_usage: bool
    """The client asked for usage in the stream, so its event belongs to the client."""
    caps: Mapping[str, Any]
    """What the client gave as caps of the completion, by field, as it gave them; null counts as not given."""


def parse(raw: bytes) -> ChatPrompt:
    """Raises InvalidJson or InvalidRequest, naming the place."""
    fields = bodies.parse(raw)
    bodies.refuse_repeated(raw, fields, _ENFORCED)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest(f"model must be a non-empty string, not {_what(fields, 'model')}", param="model")
    bodies.check_name(model)
    messages = _messages(fields)
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest(
            f"stream_options must be an object, not {type_name(options)}", param="stream_options"
        )
    return ChatPrompt(
        raw=raw,
        fields=fields,
        model=model,
        messages=messages,
        stream=_flag(fields, "stream"),
        asks_usage=bool(options and options.get("include_usage")),
        caps={key: fields[key] for key in CAP_FIELDS if fields.get(key) is not None},
    )


def _messages(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest(f"messages must be an array, not {_what(fields, 'messages')}", param="messages")
    if not messages:
        raise InvalidRequest("messages must hold at least one message, not 0", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(
                f"messages[{i}] must be an object, not {type_name(message)}", param=f"messages[{i}]"
            )
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{i}].role must be a string, not {_what(message, 'role')}",
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


def _flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{key} must be true or false, not {type_name(value)}", param=key)
    return bool(value)


def _what(fields: Mapping[str, Any], key: str) -> str:
    return type_name(fields[key]) if key in fields else "missing"


@dataclass(frozen=True, slots=True)
class Edits:
    """What leaves other than it came. None of it set: the original bytes go on."""

    kept: Sequence[int] | None = None
    """Indices of the messages that stay; None: all of them."""
    model: str | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    """Fields that get another number, or are put in."""
    add_usage: bool = False

    @property
    def none(self) -> bool:
        return self.kept is None and self.model is None and not self.caps and not self.add_usage


def encode(prompt: ChatPrompt, edits: Edits) -> bytes:
    """The body to send. Edits are splices: whatever is not replaced keeps its bytes, order and spacing."""
    if edits.none:
        return prompt.raw
    text = bodies.decode(prompt.raw)
    members = bodies.members(text)
    splices: list[spans.Splice] = []
    if edits.model is not None:
        splices.append(spans.set_member(text, members, "model", orjson.dumps(edits.model).decode()))
    splices += [spans.set_member(text, members, key, str(cap)) for key, cap in edits.caps.items()]
    if edits.add_usage:
        splices.append(_ask_usage(text, members))
    if edits.kept is not None:
        array = next(member for member in members if member.key == "messages")
        splices.append(spans.keep_elements(text, spans.scan_array(text, array.value_start), edits.kept))
    return bodies.encode(spans.apply(text, splices))


def _ask_usage(text: str, members: Sequence[spans.Member]) -> spans.Splice:
    """`include_usage` put into the client's `stream_options`, or that whole object where there is none."""
    options = next((member for member in members if member.key == "stream_options"), None)
    if options is None or text[options.value_start] != "{":
        return spans.set_member(text, members, "stream_options", '{"include_usage":true}')
    inner = text[options.value_start : options.value_end]
    try:
        splice = spans.set_member(inner, bodies.members(inner), "include_usage", "true")
    except ValueError:
        raise InvalidRequest(
            "the key 'include_usage' is given twice", param="stream_options.include_usage"
        ) from None
    return spans.Splice(options.value_start + splice.start, options.value_start + splice.end, splice.text)
