"""What is said shorter wherever it stands: repeated system messages, base64 data, long tool outputs.

A squeezed text depends on its own characters and the config only, and applies from its first appearance. So
nothing that was sent once is sent otherwise later, and a prefix cache holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.dialects.items import texts_of
from proxy.dialects.prompt import Place
from proxy.history.turns import HEAD, Layout

LEAST_BLOB_CHARACTERS: Final = 512
"""Shorter base64 stays: keys, hashes, small icons. It costs less than the question what was there."""
NOTE_TOKENS: Final = 24
"""Room for the note and the line breaks around it; the note has about 12."""

_NOTE: Final = "[... {tokens:,} tokens left out ...]"
_BLOB_NOTE: Final = "[base64 data left out: {characters:,} characters]"
# In one piece, or in lines as MIME (RFC 2045: at most 76 characters) and PEM (RFC 7468: 64) write it.
_BLOB = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?:data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,)?"
    r"(?:(?:[A-Za-z0-9+/]{60,76}\r?\n){6,}[A-Za-z0-9+/]*|[A-Za-z0-9+/_-]{512,})={0,2}"
)
# Hexadecimal digits, a DNA sequence or a line of dashes match the alphabet; all of these are in real data.
_KINDS = (re.compile(r"[A-Z]"), re.compile(r"[a-z]"), re.compile(r"[0-9]"))


class Measure(Protocol):
    """Tokens of texts, by the model's own tokenizer."""

    async def tokens(self, text: str) -> int: ...

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        """A beginning and an end of so many tokens at most, which never overlap."""
        ...


def without_base64(text: str) -> str:
    """The text with a note in place of base64 data; the very text where there is none."""
    if len(text) < LEAST_BLOB_CHARACTERS or max(map(len, text.split()), default=0) < 60:
        return text
    return _BLOB.sub(_blob_note, text)


def _blob_note(found: re.Match[str]) -> str:
    blob = found[0]
    if len(blob) < LEAST_BLOB_CHARACTERS or not all(kind.search(blob) for kind in _KINDS):
        return blob
    return _BLOB_NOTE.format(characters=len(blob))


async def shortened(text: str, limit_tokens: int, measure: Measure) -> str:
    """The beginning and the end of a text that is longer, with a note between; at most `limit_tokens` in all.

    As much of either end: a file tells at its beginning what it is, a log at its end how it went.
    """
    if len(text.encode("utf-8", "surrogatepass")) <= limit_tokens:  # no token is less than a byte
        return text
    whole, _ = await measure.clip(text, limit_tokens, 0)
    if whole == text:
        return text
    ends = max(0, limit_tokens - NOTE_TOKENS)
    head, tail = await measure.clip(text, ends - ends // 2, ends // 2)
    left_out = text[len(head) : len(text) - len(tail)]
    note = _NOTE.format(tokens=await measure.tokens(left_out))
    return "\n".join(part for part in (head, note, tail) if part)


def message_texts(items: Sequence[Any], roles: Iterable[str]) -> list[tuple[Place, str]]:
    """What messages of these roles say, as a string or in parts, and where it stands. Not what tools returned."""
    wanted = set(roles)
    found: list[tuple[Place, str]] = []
    for i, item in enumerate(items):
        if isinstance(item, str):
            if "user" in wanted:
                found.append((Place(i, ()), item))
        elif isinstance(item, Mapping) and item.get("role") in wanted:
            found += texts_of(item.get("content"), i, ("content",))
    return found


def repeats(messages: Sequence[Mapping[str, Any]], layout: Layout, kept: Sequence[int]) -> frozenset[int]:
    """System messages that are the same as an earlier one of `kept`.

    Judged by what is kept, so that the first one that is sent stays; it changes only when the cut moves. One
    that keeps two messages of the same role apart stays too: without it roles would no longer alternate.
    """
    alone = {unit.start for unit in layout.units if unit.end == unit.start + 1 and unit.kind == "other"}
    alone.update(range(layout.head))
    found: list[int] = []
    said: set[str] = set()
    waiting: list[int] = []  # repeats since the last message that is no system message
    before: object = None
    for index in kept:
        message = messages[index]
        role = message.get("role") if isinstance(message, Mapping) else None
        if role in HEAD:
            key = repr(message)
            if key in said and index in alone:
                waiting.append(index)
            said.add(key)
            continue
        if role != before:
            found += waiting
        waiting, before = [], role
    if before != "assistant":  # the role of the reply, which will stand behind these
        found += waiting
    return frozenset(found)
