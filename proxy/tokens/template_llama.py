"""What llama.cpp does with a chat request otherwise than vLLM, before a template sees it.

After llama.cpp of October 2026, common/chat.cpp (`common_chat_templates_apply`: developers, the message that is
continued) and tools/server/server-common.cpp (`oaicompat_chat_params_parse`: when it is), and its answers to
`/apply-template` (xllamacpp 2026.10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any

from proxy.tokens.template_request import TemplateRefused

_CONTINUES = (True, "content", "reasoning_content")


def developers_as_systems(messages: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    """Developers are systems, each where it stands, but for a template of gpt-oss."""
    if "<|channel|>" in source:
        return [dict(message) for message in messages]
    return [
        {**message, "role": "system"} if message["role"] == "developer" else dict(message)
        for message in messages
    ]


def continued(body: Mapping[str, Any]) -> str | None:
    """The text of the last message where it is continued: it stands after the generation prompt of those before.

    Empty, it has no generation prompt before it either. None where a new message begins. Unlike with vLLM a last
    message of the assistant is continued without being asked for.
    """
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    if not messages:
        raise TemplateRefused("no messages")
    assistants = [message.get("role") == "assistant" for message in messages[-2:]]
    if body.get("continue_final_message") in _CONTINUES:
        if body.get("add_generation_prompt") in (None, True):
            raise TemplateRefused("both `continue_final_message` and `add_generation_prompt`")
    elif not assistants[-1]:
        return None
    elif all(assistants) and len(assistants) > 1:
        raise TemplateRefused("two messages of the assistant at the end")
    if assistants[-1] and messages[-1].get("tool_calls"):
        raise TemplateRefused("the last message, to be continued, has tool calls")
    return _text(messages[-1].get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") or "" if isinstance(part, Mapping) else part for part in content or ()]
    return "\n\n".join(dropwhile(lambda text: not text, texts))


def begins(body: Mapping[str, Any]) -> bool:
    """Whether there is anything of the message that is continued: then the generation prompt stands before it."""
    last = body["messages"][-1]
    return bool(last.get("content") or last.get("reasoning_content"))


def doubts(messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any], source: str) -> Iterator[str]:
    """Where it may print otherwise than we do: `given` are the variables of the template, `source` its text."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and ("think" in source or "reasoning" in source):
        yield "llama.cpp continues a last message of the assistant"
    if "tool" in source and (given.get("tools") or any(message.get("tool_calls") for message in messages)):
        yield "tools, which llama.cpp may print otherwise"
