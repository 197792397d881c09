"""What tool calls and their results cost (shared/facts/tokens.md, 1.4).

One call is a message with a recipient, its result a message from that recipient. Two or more calls in one
assistant message are billed as a single call of `multi_tool_use.parallel`, and their results as a single
message whose text is a JSON list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.tokens.openai_content import read_content
from proxy.tokens.openai_cost import Bill, Cost
from proxy.tokens.openai_families import Family
from proxy.tokens.openai_json import COMPACT, dumped, parsed

# A call: role, the recipient's three tokens beside its name (" to=functions." in whatever form).
CALL_TOKENS = 1 + 3
# A result: what stands beside "functions.NAME" in its header.
RESULT_TOKENS = 2
# Everything of a parallel turn beside its two JSON texts: two messages, the recipient, the name.
PARALLEL_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call, read as far as it can be."""

    id: object
    name: str
    arguments: str
    legacy: bool = False  # by `function_call`: its arguments were billed as they came


@dataclass(frozen=True, slots=True)
class Batch:
    """An assistant message's calls and the messages right after it that answer them."""

    calls: tuple[Call, ...]
    results: tuple[Mapping[str, Any], ...]
    unsure: tuple[str, ...]


def read_batch(messages: Sequence[Any], position: int) -> Batch | None:
    """The batch that the message at `position` opens, or None when it calls no tools.

    Results are matched inside the adjacent block only: some clients use the same ids in every turn.
    """
    message = messages[position]
    if message.get("role") != "assistant":
        return None
    given = message.get("tool_calls")
    bill = Bill()
    calls: list[Call] = []
    if isinstance(given, list):
        calls = [_call(item, bill) for item in given]
    elif given is not None:
        bill.doubt("malformed tool calls")
    legacy = message.get("function_call")
    answering = "tool"
    if isinstance(legacy, Mapping) and not calls:
        bill.doubt("a legacy function call")
        calls, answering = [replace(_call({"function": legacy}, bill), legacy=True)], "function"
    if not calls:
        return None
    results: list[Mapping[str, Any]] = []
    for following in messages[position + 1 : position + 1 + len(calls)]:
        if not isinstance(following, Mapping) or following.get("role") != answering:
            break
        results.append(following)
    if answering == "tool":
        if {str(call.id) for call in calls} != {str(result.get("tool_call_id")) for result in results}:
            bill.doubt("tool calls and results that do not match")
    elif not results:
        bill.doubt("tool calls and results that do not match")
    return Batch(tuple(calls), tuple(results), tuple(bill.reasons))


def _call(item: Any, bill: Bill) -> Call:
    if not isinstance(item, Mapping):
        bill.doubt("malformed tool calls")
        return Call(None, "", "")
    function = item.get("function")
    if not isinstance(function, Mapping):
        function = item.get("custom")
        bill.doubt("a custom tool call" if isinstance(function, Mapping) else "malformed tool calls")
    if not isinstance(function, Mapping):
        function = {}
    name = function.get("name")
    arguments = function.get("arguments", function.get("input"))
    if not isinstance(name, str) or not isinstance(arguments, str):
        bill.doubt("malformed tool calls")
    return Call(
        item.get("id"),
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, str) else "",
    )


def single_call(call: Call, family: Family, bill: Bill) -> None:
    """Add one call to its assistant message's bill."""
    bill.add(family.message_tokens + CALL_TOKENS)
    bill.text(call.name)
    value, is_json = parsed(call.arguments)
    if is_json and not call.legacy:
        bill.text(dumped(value, separators=COMPACT))
        return
    bill.text(call.arguments)
    if not is_json:
        bill.doubt("arguments that are not JSON")


def single_result(name: str, result: Mapping[str, Any], family: Family, bill: Bill | None = None) -> Cost:
    """The cost of one tool message. Its own `name` is ignored: the call's counts."""
    bill = bill or Bill()
    bill.add(family.message_tokens)
    if result.get("role") == "function":  # legacy: a name in the place of the role
        given = result.get("name")
        bill.text(given if isinstance(given, str) else name)
    else:
        bill.add(RESULT_TOKENS)
        bill.text("functions." + name)
    content = read_content(result.get("content"), family)
    bill.add(content.tokens)
    bill.doubt(*content.unsure)
    bill.text(content.text)
    return bill.cost()


def call_turn(calls: Sequence[Call], bill: Bill) -> None:
    """Add two or more calls to their assistant message's bill."""
    uses = []
    for call in calls:
        value, _ = parsed(call.arguments)
        uses.append({"recipient_name": f"functions.{call.name}", "parameters": value})
    bill.add(PARALLEL_TOKENS)
    bill.text(dumped({"tool_uses": uses}, separators=COMPACT))


def joint_results(results: Sequence[Mapping[str, Any]], family: Family) -> Cost:
    """The cost of all results of a parallel turn; the first of its tool messages carries it."""
    bill = Bill()
    values = []
    for result in results:
        content = read_content(result.get("content"), family)
        bill.add(content.tokens)
        bill.doubt(*content.unsure)
        values.append(parsed(content.text)[0])
    bill.text(dumped(values, ascii_only=family.ascii_results))
    return bill.cost()
