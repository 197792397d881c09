"""Counts by the upstream itself, where it can count: the prompt is rendered and tokenized there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import orjson

from backends.errors import Uncountable
from proxy.tokens.counts import Counts

_MAX_REMEMBERED = 20_000


@runtime_checkable
class Oracle(Protocol):
    """An upstream that counts. Raises BackendError."""

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of a chat request, as `usage.prompt_tokens` will report them."""
        ...

    async def text_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        ...


class OracleCounter:
    """Implements `Counter` by asking. Answers are remembered by a keyed digest, so history costs nothing."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._key = os.urandom(32)
        self._known: dict[bytes, int] = {}

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        if limit is not None and (at_least := await self._surely_over(body, limit)):
            return Counts(at_least, complete=False)
        try:
            return Counts(await self._ask(body))
        except Uncountable:
            # A role or a shape that its template does not take: the upstream will say so itself.
            total = await self._text_tokens(body["messages"])
            return Counts(total, unsure=("the upstream's template does not take these messages",))

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
        """What a unit adds to a bare conversation; it stands at the unit's first message."""
        messages = body["messages"]
        weights = [0] * len(messages)
        for start, end in units:
            unit = messages[start:end]
            try:
                bare = await self._ask({"messages": [_BARE]})
                weights[start] = max(0, await self._ask({"messages": [_BARE, *unit]}) - bare)
            except Uncountable:
                # A template that does not take it alone, or takes no system message.
                weights[start] = await self._text_tokens(unit)
        return weights

    async def _text_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return sum([await self._oracle.text_tokens(text) for text in _texts(messages)])

    async def _ask(self, body: Mapping[str, Any]) -> int:
        key = hashlib.blake2b(_bytes(body), key=self._key, digest_size=16).digest()
        known = self._known.get(key)
        if known is None:
            known = await self._oracle.prompt_tokens(body)
            if len(self._known) >= _MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    async def _surely_over(self, body: Mapping[str, Any], limit: int) -> int:
        """A count above `limit` if the text alone is over it for sure, else 0.

        Text is tokenized in parts, cut before white space. A cut can add a token, so each counts for one less.
        Each part is half of what is left, judged by how dense the part before was, so a few of them are
        enough, and no more than about a tenth too much is tokenized.
        """
        texts = _texts(body["messages"])
        if sum(map(len, texts)) <= limit * 4:
            return 0
        total, density = 0, _DENSE
        for text in texts:
            at = 0
            while at < len(text):
                left = limit * 1.1 - total
                end = _cut_before(text, at + max(64, int(left / density / 2)))
                tokens = await self._oracle.text_tokens(text[at:end])
                total += max(0, tokens - 1)
                if total > limit:
                    return total
                density = max(_SPARSE, tokens / (end - at))
                at = end
        return 0


_DENSE, _SPARSE = 2.0, 0.02
"""Tokens per character: what is assumed of text not seen yet, and the least that is believed of any."""


def _cut_before(text: str, end: int) -> int:
    """The last white space before `end`, within 64 characters, so that no word is cut."""
    if end >= len(text):
        return len(text)
    for back in range(64):
        if text[end - back].isspace() and not text[end - back - 1].isspace():
            return end - back
    return end


_NOT_COUNTED = frozenset(
    ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "user")
)
_BARE = {"role": "system", "content": "."}


def _bytes(body: Mapping[str, Any]) -> bytes:
    """Bytes that stand for what is counted. orjson refuses lone surrogates; json does not."""
    counted = {key: value for key, value in body.items() if key not in _NOT_COUNTED}
    try:
        return orjson.dumps(counted)
    except TypeError:
        return json.dumps(counted).encode()


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    out = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            out.append(content)
        elif isinstance(content, list):
            out += [
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            ]
    return out
