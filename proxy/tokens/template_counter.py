"""Counting prompts here with the model's own template and tokenizer: the `Counter` of vLLM and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.tokens.counts import Counts
from proxy.tokens.local import CountingPool, is_small
from proxy.tokens.memo import Memo
from proxy.tokens.segments import SegmentCounter
from proxy.tokens.template import ChatTemplate, Prompt
from proxy.tokens.template_request import TemplateRefused
from proxy.tokens.tokenizer_files import Tokenizer, replace_surrogates

# A millisecond or two of tokenizing (1.4 to 1.8 MB/s, shared/facts/tokens.md section 3).
INLINE_CHARACTERS = 2 * 1024
# What may be rendered on the event loop: 5 to 20 µs for each message.
INLINE_MESSAGES = 100
INLINE_UNITS = 20  # to be weighed: each is a rendering of its own

_SURROGATES = "half a surrogate pair in the text"
# Where a unit may stand to be weighed: as an old turn, with a system message before it and a question after;
# then what templates take that want roles to alternate, or no system message.
_SYSTEM, _QUESTION = {"role": "system", "content": "."}, {"role": "user", "content": "."}
_PLACES: tuple[tuple[list[dict[str, str]], list[dict[str, str]]], ...] = (
    ([_SYSTEM], [_QUESTION]),
    ([_QUESTION], [_QUESTION]),
    ([_QUESTION], []),
    ([], []),
)


class TemplateCounter:
    """Counts prompts for one model. Never raises for what a request holds: what cannot be rendered is unsure."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, memo: Memo, pool: CountingPool) -> None:
        self._template = template
        self._segments = SegmentCounter(tokenizer, memo)
        self._memo = memo
        self._weights = f"weight {tokenizer.name} {template.name}"
        self._pool = pool

    @property
    def encoded_tokens(self) -> int:
        """Tokens really made so far: the work done."""
        return self._segments.encoded_tokens

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        """Count a whole chat request body; stop early once it is sure to be over `limit` tokens."""
        if not _renders_quickly(body):
            return await self._pool.run(self._count_body, body, limit)
        prompt = self._render(body)
        known, missing = self._look_up(prompt.text)
        if sum(map(len, missing)) > INLINE_CHARACTERS:
            return await self._pool.run(self._finish, known, missing, prompt.unsure, limit)
        return self._finish(known, missing, prompt.unsure, limit)

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
        """What a unit adds to a bare conversation as an old turn of it; it stands at the unit's first message."""
        given = body.get("messages")
        messages = given if isinstance(given, list) else []
        if not _renders_quickly(body):
            return await self._pool.run(self._weigh_all, messages, units)
        keys = [_key(messages[start:end]) for start, end in units]
        new = [key for key in keys if self._memo.get(self._weights, key) is None]
        if len(new) > INLINE_UNITS or sum(map(len, new)) > INLINE_CHARACTERS:
            return await self._pool.run(self._weigh_all, messages, units)
        return self._weigh_all(messages, units)

    def _count_body(self, body: Mapping[str, Any], limit: int | None) -> Counts:
        prompt = self._render(body)
        return self._finish(*self._look_up(prompt.text), prompt.unsure, limit)

    def _render(self, body: Mapping[str, Any]) -> Prompt:
        try:
            prompt = self._template.render(body)
        except TemplateRefused as refused:
            # The server will say so itself; meanwhile the texts alone are the best guess.
            text = "\n".join(_texts(body))
            prompt = Prompt(text, (f"the template does not take this request: {refused}",))
        if prompt.text.isascii():
            return prompt
        try:
            prompt.text.encode()
        except UnicodeEncodeError:
            return Prompt(replace_surrogates(prompt.text), (*prompt.unsure, _SURROGATES))
        return prompt

    def _look_up(self, text: str) -> tuple[int, list[str]]:
        known = 0
        missing = []
        remembered = self._segments.known
        for piece in self._segments.cut(text):
            tokens = remembered(piece)
            if tokens is None:
                missing.append(piece)
            else:
                known += tokens
        return known, missing

    def _finish(
        self, known: int, missing: Sequence[str], unsure: tuple[str, ...], limit: int | None
    ) -> Counts:
        if limit is None:
            return Counts(known + sum(map(self._segments.count, missing)), unsure=unsure)
        rest = self._segments.count_upto(missing, limit - known)
        return Counts(known + rest.tokens, rest.complete, unsure)

    def _weigh_all(self, messages: Sequence[Any], units: Sequence[tuple[int, int]]) -> list[int]:
        weights = [0] * len(messages)
        bare: list[int | None] | None = None
        for start, end in units:
            unit = messages[start:end]
            key = _key(unit)
            weight = self._memo.get(self._weights, key)
            if weight is None:
                bare = bare or [*(self._try(before + after) for before, after in _PLACES[:-1]), 0]
                weight = self._weight(unit, bare)
                self._memo.put(self._weights, key, weight)
            weights[start] = weight
        return weights

    def _weight(self, unit: Sequence[Any], bare: Sequence[int | None]) -> int:
        for (before, after), without in zip(_PLACES, bare, strict=True):
            if without is None:
                continue
            tokens = self._try([*before, *unit, *after])
            if tokens is not None:
                return max(0, tokens - without)
        return self._tokens("\n".join(_texts({"messages": unit})))

    def _try(self, messages: Sequence[Any]) -> int | None:
        try:
            prompt = self._template.render({"messages": messages, "add_generation_prompt": False})
        except TemplateRefused:
            return None
        return self._tokens(prompt.text)

    def _tokens(self, text: str) -> int:
        return sum(map(self._segments.count, self._segments.cut(text)))


def _renders_quickly(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    return not (isinstance(messages, list) and len(messages) > INLINE_MESSAGES) and is_small(body)


def _key(unit: Sequence[Any]) -> str:
    try:
        return orjson.dumps(unit).decode()
    except TypeError:  # half a surrogate pair
        return json.dumps(unit)


def _texts(body: Mapping[str, Any]) -> list[str]:
    """Every text of the messages and the tools, wherever it stands."""
    out = []
    waiting = [body.get("tools"), body.get("messages")]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, Mapping):
            waiting.extend(value for key, value in item.items() if key not in _MEDIA_KEYS)
        elif isinstance(item, list):
            waiting.extend(item)
    return out


_MEDIA_KEYS = frozenset(("image_url", "input_audio", "audio_url", "video_url", "file"))
