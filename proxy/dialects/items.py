"""Edits to the items of a conversation, made twice alike: to the parsed items, and to their text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from proxy.dialects import body as bodies
from proxy.dialects import fields as read
from proxy.dialects import spans
from proxy.dialects.prompt import Edits, Path, Place, Prompt
from proxy.dialects.spans import Splice

HEAD_ROLES = ("system", "developer")
BETWEEN = "\n\n"
"""What stands between a summary and the text that it is put in front of."""


class Front(NamedTuple):
    """Where a summary goes."""

    item: int
    """The item that gets it; the number of items: behind all of them."""
    content: Path | None
    """Where that item has its content: a string, or an array of parts. None: a message of its own in front."""


def kept_indices(items: Sequence[Any], edits: Edits) -> Sequence[int]:
    return range(len(items)) if edits.kept is None else edits.kept


def front(items: Sequence[Any], kept: Iterable[int]) -> Front:
    """The first kept user message behind the leading system messages, or the place of what stands there."""
    head = 0
    while head < len(items) and _message(items[head]) and items[head].get("role") in HEAD_ROLES:
        head += 1
    first = next((i for i in kept if i >= head), None)
    if first is None:
        return Front(len(items), None)
    item = items[first]
    if isinstance(item, str):
        return Front(first, ())
    if _message(item) and item.get("role") == "user" and not _answers(item.get("content")):
        content = item.get("content")
        if isinstance(content, str | list):
            return Front(first, ("content",))
    return Front(first, None)


def _message(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type", "message") in ("message", None)


def _answers(content: Any) -> bool:
    """Tool results have to come first in an Anthropic message: nothing may be put before them."""
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in content
    )


def edited(items: Sequence[Any], edits: Edits, part_type: str) -> list[Any]:
    """The items that stay, with their new texts and the summary. Nothing of `items` is changed."""
    kept = kept_indices(items, edits)
    new = {i: items[i] for i in kept}
    for place, text in edits.texts.items():
        if place.item in new:
            new[place.item] = _with(new[place.item], place.path, partial(_other, text))
    if edits.summary is None:
        return list(new.values())
    at, content = front(items, kept)
    summary = edits.summary
    if content is not None:
        new[at] = _with(new[at], content, lambda old: _put_before(old, summary, part_type))
        return list(new.values())
    own = {"role": "user", "content": summary}
    return [each for i, item in new.items() for each in ((own, item) if i == at else (item,))] + (
        [own] if at == len(items) else []
    )


def _other(text: str, _: Any) -> str:
    return text


def _put_before(old: Any, summary: str, part_type: str) -> Any:
    if isinstance(old, str):
        return summary + BETWEEN + old
    return [{"type": part_type, "text": summary}, *old]


def _with(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A copy of the value in which what is at the path is another."""
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return [*value[:step], _with(value[step], rest, change), *value[step + 1 :]]
    return {**value, step: _with(value[step], rest, change)}


def encode(prompt: Prompt, edits: Edits, key: str, part_type: str) -> bytes:
    """The body to send, with the items in the array at `key`, or one item that is a string there."""
    if edits.none:
        return prompt.raw
    text = bodies.decode(prompt.raw)
    members = bodies.members(text)
    found = read.splices(text, members, edits)
    if edits.of_history:
        value = next((member for member in members if member.key == key), None)
        if value is not None and text[value.value_start] == "[":
            found += splices(text, value.value_start, prompt.items, edits, part_type)
        elif value is not None and text[value.value_start] == '"':
            new = edited(prompt.items, edits, part_type)[0]
            found.append(Splice(value.value_start, value.value_end, spans.quoted(new)))
    return bodies.encode(spans.apply(text, found))


def splices(text: str, start: int, items: Sequence[Any], edits: Edits, part_type: str) -> list[Splice]:
    """The same as `edited`, for the array whose '[' is at `start` in the text.

    Raises ValueError for a place that the text does not have.
    """
    elements = spans.scan_array(text, start)
    kept = kept_indices(items, edits)
    out = [] if edits.kept is None else spans.keep_elements(elements, kept)
    stays = set(kept)
    summary = edits.summary
    at = front(items, kept) if summary is not None else None
    for place, new in edits.texts.items():
        if place.item not in stays:
            continue
        if at is not None and summary is not None and place == (at.item, at.content):
            new, at = summary + BETWEEN + new, None
        out.append(Splice(*spans.locate(text, elements[place.item], place.path), spans.quoted(new)))
    if at is not None and summary is not None:
        out.append(_summary(text, elements, kept, at, summary, part_type))
    return out


def _summary(
    text: str,
    elements: Sequence[tuple[int, int]],
    kept: Sequence[int],
    at: Front,
    summary: str,
    part_type: str,
) -> Splice:
    if at.content is not None:
        return before(text, spans.locate(text, elements[at.item], at.content), summary, part_type)
    own = f'{{"role":"user","content":{spans.quoted(summary)}}}'
    if at.item < len(elements):
        start = elements[at.item][0]
        return Splice(start, start, own + ",")
    if not kept:
        return Splice(elements[-1][1], elements[-1][1], own)
    end = elements[kept[-1]][1]
    return Splice(end, end, "," + own)


def before(text: str, content: tuple[int, int], summary: str, part_type: str) -> Splice:
    """The summary put in front of a string or of an array of parts, whose own characters stay."""
    start = content[0] + 1
    if text[content[0]] == '"':
        return Splice(start, start, spans.quoted(summary + BETWEEN)[1:-1])
    comma = "," if spans.scan_array(text, content[0]) else ""
    part = f'{{"type":"{part_type}","text":{spans.quoted(summary)}}}{comma}'
    return Splice(start, start, part)


def texts_of(content: Any, item: int, path: Path) -> list[tuple[Place, str]]:
    """The texts of a content: itself, or those of its parts."""
    if isinstance(content, str):
        return [(Place(item, path), content)]
    found: list[tuple[Place, str]] = []
    for j, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, str):
            found.append((Place(item, (*path, j)), part))
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            found.append((Place(item, (*path, j, "text")), part["text"]))
    return found
