"""The messages of an Anthropic request as chat messages. Pure.

As vLLM makes them (0.32, entrypoints/anthropic/serving.py), so that its prompts are counted exactly. What vLLM
refuses, and Anthropic's server tools make, is counted as its JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proxy.dialects.fields import written

_BILLING_LINE = "x-anthropic-billing-header"
"""Claude Code's system block with it changes at every request; vLLM leaves it out."""
_OPAQUE = frozenset(("type", "cache_control", "encrypted_content", "data", "signature", "source"))
_ADDS = ("mcp_servers", "container", "context_management")
_AS_THEY_ARE = ("model", "chat_template_kwargs")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Converted(NamedTuple):
    chat: dict[str, Any]
    origin: list[range]
    unsure: tuple[str, ...]


def blocks(message: Any) -> Sequence[Mapping[str, Any]]:
    """The blocks of a message; none where its content is a string."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return [b if isinstance(b, Mapping) else {} for b in content] if isinstance(content, list) else ()


def convert(fields: Mapping[str, Any], messages: Sequence[Any]) -> Converted:
    unsure: dict[str, None] = {
        f"`{key}`: what it does to the prompt is not counted": None for key in _ADDS if fields.get(key)
    }
    made: list[dict[str, Any]] = []
    origin: list[range] = []
    system = fields.get("system")
    if text := system if isinstance(system, str) else _system(system):
        made.append({"role": "system", "content": text})
        origin.append(range(0))
    waits = None  # the first of the messages that have nothing to show, and go with what follows
    for i, message in enumerate(messages):
        if message["role"] == "system":
            unsure["system messages among the others, which a server may move"] = None
            inner = _system(message.get("content"))
            new = [{"role": "system", "content": inner}] if inner else []
        else:
            new = _chat(message, unsure)
        if not new and waits is None:
            waits = i
        if new:
            made += new
            origin += [range(i if waits is None else waits, i + 1)] * len(new)
            waits = None
    if waits is not None and origin:
        origin[-1] = range(min(origin[-1].start, waits) if origin[-1] else waits, len(messages))
    chat = {key: fields[key] for key in _AS_THEY_ARE if fields.get(key) is not None}
    return Converted(chat | {"messages": made} | _options(fields, unsure), origin, tuple(unsure))


def _system(content: Any) -> str:
    texts = [content] if isinstance(content, str) else [block.get("text") for block in content or ()]
    return "".join(t for t in texts if isinstance(t, str) and not t.startswith(_BILLING_LINE))


def _chat(message: Mapping[str, Any], unsure: dict[str, None]) -> list[dict[str, Any]]:
    """Tool results first, each a message, then what else there is, in one."""
    role, content = message["role"], message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    before: list[dict[str, Any]] = []
    own: dict[str, Any] = {"role": role}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            if isinstance(text := block.get("text"), str) and text:
                parts.append({"type": "text", "text": text})
        elif kind == "image":
            parts.append(_image(block.get("source")))
        elif kind == "thinking":
            if isinstance(text := block.get("thinking"), str):
                thoughts.append(text)
        elif kind == "redacted_thinking":
            unsure["redacted thinking, which is not counted"] = None
        elif kind == "tool_use":
            calls.append(_call(block, unsure))
        elif kind == "tool_result" and role == "user":
            before += _result(block, unsure)
        elif kind != "tool_reference":
            parts.append({"type": "text", "text": _other(block, unsure)})
    if thoughts:
        own["reasoning"] = "".join(thoughts)
    if calls:
        own["tool_calls"] = calls
    if parts:
        own["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    if role == "user" and not parts:
        return before
    return [*before, own]


def _call(block: Mapping[str, Any], unsure: dict[str, None]) -> dict[str, Any]:
    arguments = written(block.get("input") or {}, unsure, ascii_only=True)
    return {
        "id": block.get("id") or "",
        "type": "function",
        "function": {"name": block.get("name") or "", "arguments": arguments},
    }


def _result(block: Mapping[str, Any], unsure: dict[str, None]) -> list[dict[str, Any]]:
    """What a tool returned: its text, and behind it its images, which vLLM shows as the user's."""
    content = block.get("content")
    answers = block.get("tool_use_id") or ""
    if not isinstance(content, list):
        text = content if isinstance(content, str) else ""
        return [{"role": "tool", "tool_call_id": answers, "content": text}]
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    named: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(part["text"] if isinstance(part.get("text"), str) else "")
        elif kind == "image":
            images.append(_image(part.get("source")))
        elif kind == "tool_reference":
            if name := part.get("tool_name") or part.get("name"):
                named.append({"type": "tool_reference", "name": name})
        elif isinstance(part, dict):
            texts.append(_other(part, unsure))
    made = [{"role": "tool", "tool_call_id": answers, "content": "\n".join(texts)}]
    if images:
        made.append({"role": "user", "content": images})
    if named:
        made.append({"role": "tool", "tool_call_id": answers, "content": named})
    return made


def _image(source: Any) -> dict[str, Any]:
    if not isinstance(source, Mapping):
        return {"type": "image_url", "image_url": {"url": ""}}
    url = source.get("url")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url if isinstance(url, str) else ""}}


def _other(block: Mapping[str, Any], unsure: dict[str, None]) -> str:
    """Documents, search results, server tools and what is still to come: their text, as far as it is here."""
    kind = str(block.get("type"))
    unsure[f"blocks of type {kind[:40]}"] = None
    shown = {key: value for key, value in block.items() if key not in _OPAQUE}
    source = block.get("source")
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
        shown["source"] = source.get("data", source.get("content"))
    elif isinstance(source, str):
        shown["source"] = source
    return written(shown, unsure) if shown else ""


def _options(fields: Mapping[str, Any], unsure: dict[str, None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tools = fields.get("tools")
    if isinstance(tools, list):
        found["tools"] = [made for tool in tools if (made := _tool(tool, unsure)) is not None]
        found["tool_choice"] = "auto"
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "tool":
            found["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        elif kind in _CHOICES:
            found["tool_choice"] = _CHOICES[kind]
    output = fields.get("output_config")
    if isinstance(output, Mapping):
        if output.get("effort") is not None:
            found["reasoning_effort"] = output["effort"]
        form = output.get("format")
        if isinstance(form, Mapping) and form.get("schema"):
            schema = {"name": "json_schema", "schema": form["schema"]}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
    thinking = fields.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
        found["reasoning_effort"] = "none"
    return found


def _tool(tool: Any, unsure: dict[str, None]) -> dict[str, Any] | None:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("input_schema"), Mapping):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        unsure[f"tools of type {str(kind)[:40]}"] = None
        return None
    schema = tool["input_schema"]
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": dict(schema) if "type" in schema else {**schema, "type": "object"},
    }
    optional = {"strict": tool.get("strict"), "defer_loading": tool.get("defer_loading")}
    return {"type": "function", "function": function | {k: v for k, v in optional.items() if v is not None}}
