"""What is read alike from a body in every dialect, and the edits to it that are alike. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from proxy.dialects import body as bodies
from proxy.dialects import spans
from proxy.dialects.body import type_name
from proxy.dialects.prompt import Edits
from proxy.errors import InvalidRequest

CAPS = ("max_completion_tokens", "max_tokens", "n_predict")
"""Every name under which a chat server may read the completion's cap; `n_predict` is llama.cpp's.

It is for all paths: llama.cpp turns each dialect into a chat request and leaves unknown fields in it.
"""


def read(raw: bytes, enforced: Collection[str]) -> dict[str, Any]:
    """The parsed body, in which none of the keys that we act on is there twice."""
    fields = bodies.parse(raw)
    bodies.refuse_repeated(raw, fields, enforced)
    return fields


def model(fields: Mapping[str, Any]) -> str:
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"model must be a non-empty string, not {what(fields, 'model')}", param="model")
    bodies.check_name(name)
    return name


def flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{key} must be true or false, not {type_name(value)}", param=key)
    return bool(value)


def asks_usage(fields: Mapping[str, Any]) -> bool:
    """Whether the client asked for usage in the stream (`stream_options.include_usage`)."""
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest(
            f"stream_options must be an object, not {type_name(options)}", param="stream_options"
        )
    return bool(options and options.get("include_usage"))


def may_be_cut(fields: Mapping[str, Any]) -> bool:
    """Whether vLLM may cut the prompt (`truncate_prompt_tokens`, in its chat and plain completions)."""
    return fields.get("truncate_prompt_tokens") is not None


def caps(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: fields[key] for key in names if fields.get(key) is not None}


def what(fields: Mapping[str, Any], key: str) -> str:
    return type_name(fields[key]) if key in fields else "missing"


def splices(text: str, members: Sequence[spans.Member], edits: Edits) -> list[spans.Splice]:
    """The model's name, the caps, and the question for usage."""
    found: list[spans.Splice] = []
    if edits.model is not None:
        found.append(spans.set_member(text, members, "model", spans.quoted(edits.model)))
    found += [spans.set_member(text, members, key, str(cap)) for key, cap in edits.caps.items()]
    if edits.add_usage:
        found.append(_ask_usage(text, members))
    return found


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


def number(fields: Mapping[str, Any], key: str) -> int | None:
    """A count of tokens in a usage object; None where there is none."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


TOO_DEEP = "what is nested too deep to be written again"


def written(value: Any, unsure: dict[str, None], *, ascii_only: bool = False) -> str:
    """A part of a request as JSON text. One at the edge of what can be read is left out, and said to be."""
    try:
        return json.dumps(value, ensure_ascii=ascii_only)
    except RecursionError:
        unsure[TOO_DEEP] = None
        return ""
