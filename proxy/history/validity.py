"""What OpenAI would refuse in a list of messages (facts/tokens.md 4.2, items 1 to 5).

Problems are told by place and rule. Message text, names and ids never show up in them, so they may be
logged and sent to a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def problems(messages: Sequence[Mapping[str, Any]], *, json_object: bool = False) -> list[str]:
    """Every break of the rules, in order of place; empty means that OpenAI would take it.

    `json_object` tells that the request asks for `response_format: json_object`, which is refused unless
    the word "json" occurs somewhere in the messages.
    """
    if not messages:
        return ["messages: empty"]
    found: list[str] = []
    open_calls: dict[str, str] = {}  # id → place of a call that waits for its result
    known: frozenset[str] = frozenset()  # ids of the block we stand in; ids repeat across blocks
    items: Sequence[object] = messages  # a client may send anything
    for index, message in enumerate(items):
        place = f"messages[{index}]"
        if not isinstance(message, Mapping):
            found.extend(f"{where}: no result" for where in open_calls.values())
            found.append(f"{place}: not an object")
            open_calls, known = {}, frozenset()
            continue
        role = message.get("role")
        if role == "tool":
            answered = message.get("tool_call_id")
            if not isinstance(answered, str) or answered not in known:
                found.append(f"{place}: tool result without its call before it")
            else:
                open_calls.pop(answered, None)
        else:
            found.extend(f"{where}: no result" for where in open_calls.values())
            open_calls = _calls(message, place) if role == "assistant" else {}
            known = frozenset(open_calls)
        found.extend(f"{place}: {rule}" for rule in _alone(role, message))
    found.extend(f"{where}: no result" for where in open_calls.values())
    if json_object and not any(says_json(message) for message in items):
        found.append("messages: the word json is missing")
    return found


def _calls(message: Mapping[str, Any], place: str) -> dict[str, str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return {}
    return {
        call["id"]: f"{place}.tool_calls[{number}]"
        for number, call in enumerate(calls)
        if isinstance(call, Mapping) and isinstance(call.get("id"), str)
    }


def _alone(role: object, message: Mapping[str, Any]) -> list[str]:
    """Rules that one message breaks by itself (item 3)."""
    found = []
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        found.append("tool_calls is not a list")
    elif calls == []:
        found.append("tool_calls is empty")
    # Audio and old-style calls stand in for content as well: replies that hold only them have null there.
    stands_in = bool(calls) or any(message.get(key) for key in ("function_call", "refusal", "audio"))
    # The old-style function result may be null by the API's own schema.
    if message.get("content") is None and role != "function" and not (role == "assistant" and stands_in):
        found.append("no content")
    if role == "function" and not message.get("name"):
        found.append("function result without a name")
    return found


def says_json(message: object) -> bool:
    """Whether the word "json" is in a message's text."""
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    if isinstance(content, str):
        return "json" in content.lower()
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return any(isinstance(text, str) and "json" in text.lower() for text in texts)
    return False
