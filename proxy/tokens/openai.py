"""What each message of a chat request costs at OpenAI: a constant, and texts to be tokenized separately.

Pure: nothing here tokenizes. The rules are those of shared/facts/tokens.md, 1.2 to 1.9. Nothing here raises
on odd input: what is there is counted, and a reason to doubt the count is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.tokens.openai_calls import call_turn, joint_results, read_batch, single_call, single_result
from proxy.tokens.openai_content import read_content
from proxy.tokens.openai_cost import NOTHING, Bill, Cost
from proxy.tokens.openai_families import Family, family
from proxy.tokens.openai_tools import render_format, render_tools

__all__ = ["Cost", "Family", "PromptCosts", "family", "message_weights", "prompt_costs"]

# One token each in every encoding, so they are not tokenized.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
ROLE_TOKENS = 1
# `<|channel|>`-less header part that carries the response format's name.
FORMAT_HEADER_TOKENS = 2
# tool_choice "none", and a named function beside its name (tokens.md 1.3).
CHOICE_NONE_TOKENS = 1
CHOICE_NAMED_TOKENS = 7
CHOICE_NAMED_LEGACY_TOKENS = 4

# Request fields that put text into the prompt which we do not see (tokens.md 1.9).
_UNSEEN = {
    "prediction": "predicted output",
    "web_search_options": "web search",
    "data_sources": "Azure data sources",
    "plugins": "plugins",
}


@dataclass(frozen=True, slots=True)
class PromptCosts:
    """The cost of a request: of each message, and of what belongs to none."""

    head: Cost
    messages: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class _Options:
    """What the request's options do to its messages."""

    block: str = ""  # joins the first system message
    format_name: str = ""  # in the header of each earlier answer
    strip_system: bool = False  # leading whitespace of system messages is not billed


def prompt_costs(body: Mapping[str, Any], family: Family) -> PromptCosts:
    """The cost of a chat request body. `messages` of the result lines up with those of the body."""
    head = Bill()
    head.add(family.reply_tokens)
    head.doubt(*family.unsure)
    for field, reason in _UNSEEN.items():
        if body.get(field) is not None:
            head.doubt(reason)
    modalities = body.get("modalities")
    if isinstance(modalities, Sequence) and "audio" in modalities:
        head.doubt("audio output")

    messages = body.get("messages")
    if not isinstance(messages, list):
        head.doubt("messages is not a list")
        messages = []

    tools = _tools(body, family, head)
    formatted = render_format(body.get("response_format"))
    block = "\n\n".join([part for part in (tools, formatted[1] if formatted else "") if part])
    options = _Options(
        format_name=formatted[0] if formatted else "",
        strip_system=bool(tools) and family.system_stripped,
    )
    if tools and family.tools_and_images_tokens and any(map(_shows_image, messages)):
        head.add(family.tools_and_images_tokens)
        head.doubt("images beside tools")
    if tools == "" and any(map(_calls_in_parallel, messages)):
        head.doubt("parallel calls without tools")
    if formatted and family.own_blocks and '"$ref":' in formatted[1]:
        head.doubt("a response format with $ref on a reasoning model")  # one recording, off by one
    if formatted and family.format_in_reply and not tools:
        head.add(FORMAT_HEADER_TOKENS)
        head.text(formatted[0])
    if family.own_blocks:
        for part in (tools, formatted[1] if formatted else ""):
            if part:
                head.add(family.message_tokens + ROLE_TOKENS)
                head.text(part)
    elif block and not (messages and _is_system(messages[0])):
        head.add(family.message_tokens + ROLE_TOKENS)
        head.text(block)
    elif block:
        options = replace(options, block=block)
    return PromptCosts(head.cost(), _turns(messages, family, options))


def message_weights(messages: Sequence[Any], family: Family) -> tuple[Cost, ...]:
    """The cost of each message as an old turn: without tools, response format or anything else around it."""
    return _turns(messages, family, _Options())


def _is_system(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in ("system", "developer")


def _shows_image(message: object) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "image_url" for part in content
    )


def _calls_in_parallel(message: object) -> bool:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return isinstance(calls, list) and len(calls) > 1


def _tools(body: Mapping[str, Any], family: Family, head: Bill) -> str:
    """The tools block, or an empty text; what else tools cost goes to the head."""
    functions: list[Any] = []
    given = body.get("tools")
    for tool in given if isinstance(given, list) else ():
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
            functions.append(tool["function"])
        elif isinstance(tool, Mapping) and isinstance(tool.get("custom"), Mapping):
            head.doubt("a custom tool")
            custom = tool["custom"]
            functions.append({"name": custom.get("name"), "description": custom.get("description")})
        else:
            head.doubt("a tool of unknown type")
    legacy = body.get("functions")
    if isinstance(legacy, list) and legacy:
        head.doubt("legacy functions")
        functions.extend(legacy)
    if not functions:
        return ""
    rendering = render_tools(functions)
    head.doubt(*rendering.unsure)
    head.add(family.tools_tokens if rendering.parameters else family.bare_tools_tokens)
    if family.tool_choice_billed:
        _tool_choice(body, head)
    elif isinstance(body.get("tool_choice"), Mapping):
        head.doubt("a named tool on a reasoning model")  # two recordings: one exact, one off by one
    return rendering.text


def _tool_choice(body: Mapping[str, Any], head: Bill) -> None:
    choice = body.get("tool_choice")
    if choice == "none":
        head.add(CHOICE_NONE_TOKENS)
    elif isinstance(choice, Mapping):
        named = choice.get("function")
        if isinstance(named, Mapping) and isinstance(named.get("name"), str):
            head.add(CHOICE_NAMED_TOKENS)
            head.text(named["name"])
        else:
            head.doubt("an unknown kind of tool_choice")
    legacy = body.get("function_call")
    if isinstance(legacy, Mapping) and isinstance(legacy.get("name"), str):
        head.add(CHOICE_NAMED_LEGACY_TOKENS)
        head.text(legacy["name"])


def _turns(messages: Sequence[Any], family: Family, options: _Options) -> tuple[Cost, ...]:
    costs: list[Cost] = []
    while len(costs) < len(messages):
        position = len(costs)
        message = messages[position]
        if not isinstance(message, Mapping):
            costs.append(Cost(family.message_tokens, unsure=("a message that is not an object",)))
            continue
        batch = read_batch(messages, position)
        if batch is None:
            block = options.block if position == 0 else ""
            simple = (
                None if block or options.format_name or options.strip_system else _simple(message, family)
            )
            costs.append(simple or _plain(message, family, options, block))
            continue
        bill = Bill()
        bill.doubt(*batch.unsure)
        _beside_calls(message, family, bill)
        bill.add(family.call_turn_tokens)
        if len(batch.calls) == 1:
            single_call(batch.calls[0], family, bill)
            costs.append(bill.cost())
            costs.extend([single_result(batch.calls[0].name, result, family) for result in batch.results])
        else:
            call_turn(batch.calls, bill)
            costs.append(bill.cost())
            if batch.results:
                costs.append(joint_results(batch.results, family))
                costs.extend([NOTHING] * (len(batch.results) - 1))
    return tuple(costs)


def _beside_calls(message: Mapping[str, Any], family: Family, bill: Bill) -> None:
    """Text beside tool calls is an answer of its own."""
    content = read_content(message.get("content"), family)
    bill.doubt(*content.unsure)
    bill.add(content.tokens)
    if content.text:
        bill.add(family.message_tokens + ROLE_TOKENS)
        bill.text(content.text)


def _simple(message: Mapping[str, Any], family: Family) -> Cost | None:
    """The same as `_plain` for nearly every message of a history, five times as fast; None for the others."""
    if len(message) != 2:
        return None
    content, role = message.get("content"), message.get("role")
    if (
        not isinstance(content, str)
        or not content
        or role not in ("user", "assistant", "system", "developer")
    ):
        return None
    answer = family.answer_tokens if role == "assistant" else 0
    return Cost(family.message_tokens + ROLE_TOKENS + answer, (content,))


def _plain(message: Mapping[str, Any], family: Family, options: _Options, block: str) -> Cost:
    """A message that neither calls tools nor answers such a call."""
    bill = Bill()
    role = message.get("role")
    if role in ("tool", "function"):
        bill.doubt("a tool result without its call")
        name = message.get("name")
        return single_result(name if isinstance(name, str) else "", message, family, bill)
    if message.get("tool_calls") or message.get("function_call"):
        bill.doubt("malformed tool calls")
    bill.add(family.message_tokens)
    if isinstance(role, str) and role in ROLES:
        bill.add(ROLE_TOKENS)
    else:
        bill.doubt("an unknown role")
        if isinstance(role, str):
            bill.text(role)
    content = read_content(message.get("content"), family)
    bill.doubt(*content.unsure)
    bill.add(content.tokens)
    text = content.text
    if options.strip_system and text[:1].isspace() and role in ("system", "developer"):
        text = text.lstrip()
        bill.doubt("a system text with leading whitespace beside tools")
    bill.text("\n\n".join([part for part in (text, block) if part]))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        bill.doubt("a refusal")
        bill.text(refusal)
    name = message.get("name")
    if isinstance(name, str) and name:
        bill.add(family.name_tokens)
        bill.text(":" + name if family.name_with_colon else name)
    elif name is not None and not isinstance(name, str):
        bill.doubt("a name that is not a string")
    if role == "assistant":
        bill.add(family.answer_tokens)
        if options.format_name:
            bill.add(FORMAT_HEADER_TOKENS)
            bill.text(options.format_name)
        if message.get("audio") is not None:
            bill.doubt("earlier audio output")
    return bill.cost()
