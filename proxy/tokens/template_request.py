"""What a server hands to a chat template for a request: vLLM's rules, which every rule here is after.

vLLM 0.32: renderers/chat_utils.py (messages), renderers/hf.py (roles), entrypoints/openai/chat_completion/
protocol.py and renderers/online_renderer.py (variables, tools). Its request model drops what it does not know,
so messages and tools are built anew here, key by key in the order of its fields: some templates print them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any, Literal

_LONGEST_MESSAGE = 300

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
    "prompt_embeds": "prompt_embeds",
}
_BILLING_LINE = "x-anthropic-billing-header"
# Variables that transformers passes itself: a request that names them breaks the call.
_TAKEN = ("messages", "conversation", "chat_template")


class TemplateRefused(ValueError):
    """A template, or the server before it, does not take a request. The message is bounded."""

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = message[: _LONGEST_MESSAGE - 1] + "…"
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """Which server a model has and how it was started, where that changes its prompts; vLLM's names for its
    flags. Any other server is counted by vLLM's rules but for what is known to differ.
    """

    server: Literal["vllm", "llama.cpp"] = "vllm"
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    exclude_tools_when_tool_choice_none: bool = False


@dataclass(slots=True)
class Conversation:
    """Messages as a template gets them, and why its prompt may not be all that the server counts."""

    messages: list[dict[str, Any]]
    unsure: dict[str, None] = field(default_factory=dict)


def conversation(given: Any, *, parts: bool, empty: bool = False) -> Conversation:
    """The messages of a request. `parts`: content as a list of parts, else as one string, in which `empty` parts
    have a line of their own, once there is text (llama.cpp, common/chat.cpp), or vanish.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TemplateRefused("`messages` is not a list")
    out = Conversation([])
    for message in given:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TemplateRefused("a message is not an object with a role")
        out.messages.append(_message(message, parts, empty, out.unsure))
    return out


def _message(given: Mapping[str, Any], parts: bool, empty: bool, unsure: dict[str, None]) -> dict[str, Any]:
    role = given["role"]
    out: dict[str, Any] = {
        "role": role,
        "content": _content(role, given.get("content"), parts, empty, unsure),
    }
    if role == "assistant":
        calls = given.get("tool_calls")
        if calls is not None:
            made = _tool_calls(calls)
            if made:
                out["tool_calls"] = made
        reasoning = given.get("reasoning")
        if reasoning is None:
            reasoning = given.get("reasoning_content")
        if reasoning is not None:
            # vLLM gives it both names, transformers (5.24, `_alias_reasoning_fields`) a third.
            out = {"thinking": reasoning, **out, "reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool" and given.get("tool_call_id") is not None:
        out["tool_call_id"] = given["tool_call_id"]
    for key in ("name", "task"):
        if isinstance(given.get(key), str):
            out[key] = given[key]
    if role == "developer" and given.get("tools") is not None:
        out["tools"] = given["tools"]
    return out


def _content(
    role: str, given: Any, parts: bool, empty: bool, unsure: dict[str, None]
) -> str | list[dict[str, Any]]:
    if given is None:
        given = []
    elif isinstance(given, str):
        given = [given]
    elif not isinstance(given, Sequence):
        raise TemplateRefused("a message's content is neither text nor a list of parts")
    made = [part for item in given if (part := _part(item, unsure)) is not None]
    if role == "system":
        made = [part for item in made if (part := _without_billing_line(item)) is not None]
    if parts and (role != "tool" or any(part["type"] != "text" for part in made)):
        return made
    texts: list[str] = [part["text"] if part["type"] == "text" else part.get("name", "") for part in made]
    if role == "tool" and parts:
        return "\n".join(texts)
    if empty:
        return "\n".join(dropwhile(lambda text: not text, texts))
    return "\n".join(text for text in texts if text)


def _part(given: Any, unsure: dict[str, None]) -> dict[str, Any] | None:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, Mapping):
        raise TemplateRefused("a part of a message is neither text nor an object")
    kind = given.get("type")
    if isinstance(kind, str) and kind in _TEXT_KEYS:
        text = given.get(_TEXT_KEYS[kind])
        if text is None and kind in ("text", "refusal"):
            return None
        if not isinstance(text, str):
            raise TemplateRefused(f"a part of type {kind} has no text")
        return {"type": "text", "text": text}
    if kind == "tool_reference" and isinstance(given.get("name"), str):
        return {"type": "tool_reference", "name": given["name"]}
    media = next((key for key in (kind, *given) if isinstance(key, str) and key in _MEDIA), None)
    if media is None:
        raise TemplateRefused(f"a part of unknown type {kind!r}")
    unsure[f"{_MEDIA[media]} input, counted as its placeholder"] = None
    return {"type": _MEDIA[media]}


def _without_billing_line(part: dict[str, Any]) -> dict[str, Any] | None:
    """Claude Code's first line of system text, which changes with every request, goes; the rest stays."""
    text = part.get("text")
    if not isinstance(text, str) or not text.startswith(_BILLING_LINE):
        return part
    rest = text.partition("\n")[2]
    return {**part, "text": rest} if rest else None


def _tool_calls(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TemplateRefused("`tool_calls` is not a list")
    out = []
    for call in given:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or call.get("type", "function") != "function":
            raise TemplateRefused("a tool call is not of type function")
        made = {"arguments": _arguments(function.get("arguments")), "name": function.get("name")}
        out.append({"id": call.get("id"), "function": made, "type": "function"})
    return out


def _arguments(given: Any) -> dict[str, Any]:
    """Templates expect an object. What is not one becomes an empty one."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)  # as the server reads it: orjson's numbers may print otherwise
        except (ValueError, RecursionError):
            return {}
    return dict(given) if isinstance(given, Mapping) else {}


def without_developers(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For a template that does not know the role: developers are systems, and all systems one, first."""
    systems: list[str] = []
    others = []
    count, first_is_system = 0, False
    given = list(messages)
    for number, message in enumerate(given):
        if message["role"] not in ("developer", "system"):
            others.append(message)
            continue
        count += 1
        first_is_system = first_is_system or number == 0
        content = message["content"]
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content if "text" in part)
        if content:
            systems.append(content)
    if count == 1 and first_is_system:
        only = {key: value for key, value in given[0].items() if key != "tools"}
        return [only | {"role": "system"}, *others]
    return [{"role": "system", "content": "\n\n".join(systems)}, *others]


def variables(body: Mapping[str, Any], flags: ServerFlags) -> dict[str, Any]:
    """The variables of a template, `tools` among them. Values that are null or "auto" do not count as given."""
    asked = body.get("chat_template_kwargs")
    asked = asked if isinstance(asked, Mapping) else {}
    for name in _TAKEN:
        if asked.get(name) is not None:
            raise TemplateRefused(f"`chat_template_kwargs` has {name}")
    if body.get("chat_template") is not None:
        raise TemplateRefused("the request brings a template of its own")
    effort = body.get("reasoning_effort")
    extra = {
        "add_generation_prompt": _flag(body, "add_generation_prompt", True),
        "continue_final_message": _flag(body, "continue_final_message", False),
        "documents": body.get("documents"),
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in asked:
        extra["enable_thinking"] = effort != "none"
    start = {**flags.default_chat_template_kwargs, **_given({"tools": tools(body, flags)})}
    return start | _given({**asked, **_given(extra)})


def doubts_of_vllm(body: Mapping[str, Any]) -> Iterator[str]:
    """What a request may ask of it that is not followed here."""
    if body.get("truncate_prompt_tokens") is not None:
        yield "`truncate_prompt_tokens`: the server may cut the prompt"
    if body.get("add_special_tokens"):
        yield "`add_special_tokens`: the server may add some"


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    return default if value is None else bool(value)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def tools(body: Mapping[str, Any], flags: ServerFlags) -> list[dict[str, Any]] | None:
    """The tools as vLLM's request model prints them: null for a description or parameters that are absent."""
    given = body.get("tools")
    if given is None or (body.get("tool_choice") == "none" and flags.exclude_tools_when_tool_choice_none):
        return None
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TemplateRefused("`tools` is not a list")
    return [_tool(tool) for tool in given]


def _tool(given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise TemplateRefused("a tool is not a function")
    made = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = given.get("defer_loading")
    optional = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", deferred)}
    made |= {key: value for key, value in optional.items() if value is not None}
    out: dict[str, Any] = {"type": given.get("type", "function"), "function": made}
    return out if deferred is None else out | {"defer_loading": deferred}
