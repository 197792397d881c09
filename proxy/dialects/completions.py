"""`/v1/completions`: a prompt without messages. Pure.

Source: OpenAI's API reference, "Create completion"; llama.cpp's server README, "POST /completion", for prompts
that are objects or mix text and token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.dialects import body as bodies
from proxy.dialects import chat, spans
from proxy.dialects import fields as read
from proxy.dialects.body import type_name
from proxy.dialects.prompt import Edits, Place, Prompt, Usage, event
from proxy.errors import InvalidRequest, ProxyError

_ENFORCED = frozenset(("model", "prompt", "stream", "stream_options", *read.CAPS))
_ELSEWHERE = ("suffix", "prompt_embeds", "multimodal_data")
"""Fields that are billed as prompt too, and are not counted."""


class Completions:
    """No items. A prompt is a text, token ids, or a list of either, each a prompt of its own."""

    path = "/v1/completions"

    def parse(self, raw: bytes) -> Prompt:
        fields = read.read(raw, _ENFORCED)
        model = read.model(fields)
        prompt, unsure = _prompt(fields)
        unsure += [f"`{key}`, which is not counted" for key in _ELSEWHERE if fields.get(key)]
        return Prompt(
            dialect=self,
            raw=raw,
            fields=fields,
            model=model,
            stream=read.flag(fields, "stream"),
            asks_usage=read.asks_usage(fields),
            caps=read.caps(fields, read.CAPS),
            items=(),
            chat=_view(fields, prompt),
            several=_several(prompt),
            may_be_cut=read.may_be_cut(fields),
            unsure=tuple(unsure),
        )

    def view(self, prompt: Prompt, edits: Edits) -> Prompt:
        if edits.prompt is None:
            return prompt
        fields = {**prompt.fields, "prompt": edits.prompt}
        return replace(prompt, fields=fields, chat=_view(fields, edits.prompt))

    def encode(self, prompt: Prompt, edits: Edits) -> bytes:
        if edits.none:
            return prompt.raw
        text = bodies.decode(prompt.raw)
        members = bodies.members(text)
        found = read.splices(text, members, edits)
        if edits.prompt is not None:
            new = edits.prompt
            value = spans.quoted(new) if isinstance(new, str) else orjson.dumps(list(new)).decode()
            found.append(spans.set_member(text, members, "prompt", value))
        return bodies.encode(spans.apply(text, found))

    def tool_outputs(self, prompt: Prompt) -> Sequence[tuple[Place, str]]:
        return ()

    def cap_names(self, *, reasoning: bool) -> Sequence[str]:
        return ("max_tokens",)

    def usage(self, value: Any) -> Usage | None:
        return chat.usage(value)

    def error_body(self, error: ProxyError) -> bytes:
        return error.body("prompt")

    def error_event(self, body: bytes) -> bytes:
        return event(body)


def _view(fields: Mapping[str, Any], prompt: Any) -> Mapping[str, Any]:
    """`add_special_tokens` is vLLM's: with it off, no beginning-of-text token is counted."""
    special = fields.get("add_special_tokens")
    return {"prompt": prompt} if special is None else {"prompt": prompt, "add_special_tokens": special}


def _prompt(fields: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The prompt as counters take it, and what of it is not counted."""
    given = fields.get("prompt")
    if given is None:
        return "", []  # OpenAI puts an end-of-text token in its place; vLLM takes `prompt_embeds`
    if isinstance(given, str):
        return given, []
    if isinstance(given, dict):
        return _of_object(given), ["a prompt that is an object"]
    if not isinstance(given, list):
        raise InvalidRequest(
            f"prompt must be a string, token ids, or an array of either, not {type_name(given)}",
            param="prompt",
        )
    kinds = {_kind(i, element) for i, element in enumerate(given)}
    if kinds <= {"text"} or kinds <= {"id"} or kinds <= {"ids"}:
        return given, []
    return [each for element in given for each in _apart(element)], ["a prompt of mixed kinds"]


def _kind(i: int, element: Any) -> str:
    if isinstance(element, str):
        return "text"
    if isinstance(element, int) and not isinstance(element, bool):
        return "id"
    if isinstance(element, dict):
        return "object"
    if not isinstance(element, list):
        raise InvalidRequest(
            f"prompt[{i}] must be a string, a token id or token ids, not {type_name(element)}",
            param=f"prompt[{i}]",
        )
    for j, each in enumerate(element):
        if not isinstance(each, int) or isinstance(each, bool):
            if isinstance(each, str):
                return "mixed"
            raise InvalidRequest(
                f"prompt[{i}][{j}] must be a token id, not {type_name(each)}", param=f"prompt[{i}][{j}]"
            )
    return "ids"


def _of_object(given: Mapping[str, Any]) -> str:
    text = given.get("prompt_string")
    return text if isinstance(text, str) else ""


def _apart(element: Any) -> list[Any]:
    """An element of mixed ones as texts and lists of token ids."""
    if isinstance(element, dict):
        return [_of_object(element)]
    if isinstance(element, int):
        return [[element]]
    if isinstance(element, list) and any(isinstance(each, str) for each in element):
        return [each if isinstance(each, str) else [each] for each in element]
    return [element]


def _several(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


COMPLETIONS = Completions()
