"""Counts by the upstream itself, where it can count: the prompt is rendered and tokenized there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backends.base import Oracle
from backends.errors import Uncountable
from backends.json_bytes import json_bytes
from proxy.bounded import remember
from proxy.tokens.clip import drive_async, pack, search, unpack
from proxy.tokens.counts import Counts
from proxy.tokens.plain import PlainPrompt, plain_prompt

_MAX_REMEMBERED = 20_000


class OracleCounter:
    """Implements `Counter` by asking. Answers are remembered by a keyed digest, so history costs nothing."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._key = os.urandom(32)
        self._known: dict[bytes, int] = {}

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        plain = plain_prompt(body)
        texts = _texts(body["messages"]) if plain is None else plain.texts
        if limit is not None and (at_least := await self._surely_over(texts, limit)):
            return Counts(at_least, complete=False)
        if plain is not None:
            return await self._count_plain(plain, body)
        try:
            return Counts(await self._ask(body))
        except Uncountable:
            # A role or a shape that its template does not take: the upstream will say so itself.
            total = await self._text_tokens(texts)
            return Counts(total, unsure=("the upstream's template does not take these messages",))

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
        """What a unit adds to a bare conversation; it stands at the unit's first message."""
        messages = body.get("messages", ())
        weights = [0] * len(messages)
        for start, end in units:
            unit = messages[start:end]
            try:
                bare = await self._ask({"messages": [_BARE]})
                weights[start] = max(0, await self._ask({"messages": [_BARE, *unit]}) - bare)
            except Uncountable:
                # A template that does not take it alone, or takes no system message.
                weights[start] = await self._text_tokens(_texts(unit))
        return weights

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        """A beginning and an end of so many tokens at most: some twenty questions the first time, then none."""
        key = self._digest(json_bytes([head_tokens, tail_tokens, text]))
        both = self._known.get(key)
        if both is None:
            cut = await drive_async(search(text, head_tokens, tail_tokens), self._oracle.text_tokens)
            self._remember(key, pack(cut, text))
        else:
            cut = unpack(both, text)
        return text[: cut.head], text[cut.tail :]

    async def _count_plain(self, prompt: PlainPrompt, body: Mapping[str, Any]) -> Counts:
        tokens = prompt.ids
        unsure = list(prompt.unsure)
        options = {key: body[key] for key in ("add_special_tokens",) if key in body}
        try:
            for text in prompt.first:
                tokens += await self._ask({"prompt": text, **options})
        except Uncountable:
            tokens = prompt.ids + await self._text_tokens(prompt.first)
            unsure.append("the upstream does not take this prompt")
        tokens += await self._text_tokens(prompt.later)
        return Counts(tokens, unsure=tuple(unsure))

    async def _text_tokens(self, texts: Iterable[str]) -> int:
        return sum([await self._oracle.text_tokens(text) for text in texts])

    async def _ask(self, body: Mapping[str, Any]) -> int:
        key = self._digest(
            json_bytes({name: value for name, value in body.items() if name not in _NOT_COUNTED})
        )
        known = self._known.get(key)
        if known is None:
            known = await self._oracle.prompt_tokens(body)
            self._remember(key, known)
        return known

    def _digest(self, question: bytes) -> bytes:
        return hashlib.blake2b(question, key=self._key, digest_size=16).digest()

    def _remember(self, key: bytes, answer: int) -> None:
        remember(self._known, key, answer, _MAX_REMEMBERED)

    async def _surely_over(self, texts: Sequence[str], limit: int) -> int:
        """A count above `limit` if the text alone is over it for sure, else 0.

        Text is tokenized in parts, cut before white space. A cut can add a token, so each counts for one less.
        Each part is half of what is left, judged by how dense the part before was, so a few of them are
        enough, and no more than about a tenth too much is tokenized.
        """
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
