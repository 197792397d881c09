"""The items of a Responses request as chat messages. Pure.

As vLLM makes them (0.32, entrypoints/openai/responses/utils.py), so that its prompts are counted exactly: what
the assistant did one after the other (reasoning, text, calls) is one message, as far as it has room. What vLLM
refuses, and OpenAI's hosted tools make, is counted as its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.dialects.fields import written

_OPAQUE = frozenset(("id", "type", "status", "encrypted_content"))
_STORED = ("previous_response_id", "conversation", "prompt", "previous_input_messages")
"""What the upstream puts in front, from its own store mostly."""
_AS_THEY_ARE = (
    "model",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "parallel_tool_calls",
)


class Converted(NamedTuple):
    chat: dict[str, Any]
    origin: list[range]
    unsure: tuple[str, ...]


def is_output(item: Mapping[str, Any]) -> bool:
    """Whether this is what a tool returned: `function_call_output` and its like."""
    kind = item.get("type")
    return isinstance(kind, str) and kind.endswith("_output")


def convert(fields: Mapping[str, Any], items: Sequence[Any]) -> Converted:
    build = _Build()
    for key in _STORED:
        if fields.get(key) is not None:
            build.unsure[f"`{key}`: what is stored upstream is not counted"] = None
    instructions = fields.get("instructions")
    if isinstance(instructions, str) and instructions:
        build.put({"role": "system", "content": instructions}, range(0))
    elif instructions is not None and not isinstance(instructions, str):
        build.unsure["`instructions` that are no text"] = None
    for i, item in enumerate(items):
        build.add(i, item)
    build.bind()
    chat = {key: fields[key] for key in _AS_THEY_ARE if key in fields}
    chat["messages"] = build.messages
    tools = fields.get("tools")
    if isinstance(tools, list) and tools:
        chat["tools"] = [made for tool in tools for made in _tools(tool, build.unsure)]
        if (choice := _choice(fields.get("tool_choice"))) is not None:
            chat["tool_choice"] = choice
    if (schema := _response_format(fields.get("text"))) is not None:
        chat["response_format"] = schema
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if _goes_on(items):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    return Converted(chat, build.origin, tuple(build.unsure))


class _Build:
    """Messages in the making, and the items that each came from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origin: list[range] = []
        self.unsure: dict[str, None] = {}
        self._reasoned: int | None = None
        """The reasoning item that what comes next must stay with."""
        self._calls: dict[str, int] = {}
        """The last call of each id, by its item."""
        self._before = 0
        """The message before the outputs that come now."""
        self._bound: list[tuple[int, int]] = []
        """Items of calls and outputs that are apart."""

    def put(self, message: dict[str, Any], origin: range) -> None:
        self.messages.append(message)
        self.origin.append(origin)

    def add(self, i: int, item: Any) -> None:
        if isinstance(item, str):
            self._message(i, {"role": "user", "content": item})
            return
        kind, role = item.get("type"), item.get("role")
        if kind == "reasoning":
            self._assistant(i, "reasoning", self._reasoning(item))
            # OpenAI: an item that was made by reasoning is refused without it, and it without the item.
            self._reasoned = i
        elif kind in (None, "message") and role == "assistant":
            self._assistant(i, "content", _content(item.get("content")))
        elif kind in (None, "message") and isinstance(role, str):
            self._message(i, {"role": role, "content": _content(item.get("content"))})
        elif is_output(item):
            self._output(i, item)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(i, item)
        else:
            self.unsure[f"items of type {short(kind)}"] = None
            text = written({k: v for k, v in item.items() if k not in _OPAQUE}, self.unsure)
            self._assistant(i, "content", "" if text == "{}" else text)

    def _message(self, i: int, message: dict[str, Any]) -> None:
        self._reasoned = None
        self.put(message, range(i, i + 1))

    def _assistant(self, i: int, key: str, value: Any) -> None:
        """Into the assistant's message before, where that has none of this yet."""
        start = i if self._reasoned is None else self._reasoned
        self._reasoned = None
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant" and last.get(key) is None:
            last[key] = value
            self.origin[-1] = range(min(self.origin[-1].start, start), i + 1)
            return
        self.put({"role": "assistant", key: value}, range(start, i + 1))

    def _call(self, i: int, item: Mapping[str, Any]) -> None:
        self._calls[_id(item)] = i
        call = {"id": item.get("call_id"), "type": "function", "function": _function(item, self.unsure)}
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant" and "tool_calls" in last:
            last["tool_calls"].append(call)
            self.origin[-1] = range(self.origin[-1].start, i + 1)
            self._reasoned = None
            return
        self._assistant(i, "tool_calls", [call])

    def _output(self, i: int, item: Mapping[str, Any]) -> None:
        if self.messages and self.messages[-1]["role"] != "tool":
            self._before = len(self.messages) - 1
        called = self._calls.get(_id(item))
        if called is not None and called not in self.origin[self._before]:
            self._bound.append((called, i))
        message = {
            "role": "tool",
            "content": _content(item.get("output")),
            "tool_call_id": item.get("call_id"),
        }
        self._message(i, message)

    def bind(self) -> None:
        """Where something stands between a call and its output, none of it may go without the rest."""
        whole: list[range] = []
        for start, last in sorted(self._bound):
            if whole and start < whole[-1].stop:
                whole[-1] = range(whole[-1].start, max(whole[-1].stop, last + 1))
            else:
                whole.append(range(start, last + 1))
        at = 0
        for each in whole:
            while self.origin[at].stop <= each.start:
                at += 1
            first, start, stop = at, each.start, each.stop
            while at < len(self.origin) and self.origin[at].start < stop:
                start, stop = min(start, self.origin[at].start), max(stop, self.origin[at].stop)
                at += 1
            self.origin[first:at] = [range(start, stop)] * (at - first)
            at = first

    def _reasoning(self, item: Mapping[str, Any]) -> str:
        """Its first text, or else the first of its summary: what vLLM shows the model."""
        if item.get("encrypted_content"):
            self.unsure["encrypted reasoning, which is not counted"] = None
        for key in ("content", "summary"):
            parts = item.get(key)
            if isinstance(parts, list) and parts and isinstance(parts[0], dict):
                text = parts[0].get("text")
                return text if isinstance(text, str) else ""
        return ""


def _id(item: Mapping[str, Any]) -> str:
    return repr(item.get("call_id"))


def short(kind: object) -> str:
    text = str(kind)
    return text if len(text) <= 40 else text[:40] + "…"


def _function(item: Mapping[str, Any], unsure: dict[str, None]) -> dict[str, Any]:
    name = item.get("name")
    if item.get("type") == "custom_tool_call":
        payload = {"input": item.get("input") or ""}
        return {"name": name, "arguments": written(payload, unsure)}
    if isinstance(name, str) and isinstance(item.get("namespace"), str) and item["namespace"]:
        name = f"{item['namespace']}__{name}"
    return {"name": name, "arguments": item.get("arguments")}


def _content(content: Any) -> Any:
    """A content with the names that parts have in chat; one text alone is that text."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]
    return parts


def _part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        return {"type": "text", "text": part if isinstance(part, str) else ""}
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        text = part.get("text")
        return {"type": "text", "text": text if isinstance(text, str) else ""}
    if kind == "input_image":
        image = {"url": part.get("image_url"), "detail": part.get("detail")}
        return {"type": "image_url", "image_url": {k: v for k, v in image.items() if v is not None}}
    if kind == "input_file":
        return {"type": "file", "file": {k: v for k, v in part.items() if k != "type"}}
    return part


def _tools(tool: Any, unsure: dict[str, None]) -> Iterator[dict[str, Any]]:
    """A tool as vLLM shows it: functions and free-form tools; hosted ones are told by OpenAI in its own words."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":
        yield {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    elif kind == "custom":
        unsure["free-form tools"] = None
        text = {"type": "string", "description": "Free-form text passed to the tool verbatim."}
        schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
        function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
        yield {"type": "function", "function": function}
    elif kind == "namespace" and isinstance(tool.get("tools"), list):
        unsure["tools in a namespace"] = None
        for inner in tool["tools"]:
            if isinstance(inner, dict) and inner.get("type") == "function":
                for made in _tools(inner, unsure):
                    made["function"]["name"] = f"{tool.get('name')}__{inner.get('name')}"
                    yield made
    else:
        unsure[f"tools of type {short(kind)}"] = None


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict):
        if choice.get("type") in ("function", "custom"):
            return {"type": "function", "function": {"name": choice.get("name")}}
        return None
    return choice


def _response_format(text: Any) -> dict[str, Any] | None:
    given = text.get("format") if isinstance(text, dict) else None
    if not isinstance(given, dict):
        return None
    if given.get("type") != "json_schema":
        return {"type": given.get("type")}
    return {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}


def _goes_on(items: Sequence[Any]) -> bool:
    """Whether the last message is a part of the assistant's that is to be continued."""
    last = items[-1] if items and isinstance(items[-1], dict) else {}
    kind = last.get("type", "message")
    return kind in ("message", "reasoning") and last.get("status") in ("in_progress", "incomplete")
