"""Counting prompts here with the model's own template and tokenizer: the `Counter` of vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.json_bytes import digestible
from proxy.tokens.clip import Cut, characters_to_count, remembered_cut
from proxy.tokens.counts import Counts
from proxy.tokens.local import CountingPool, is_small
from proxy.tokens.memo import Memo
from proxy.tokens.plain import PlainPrompt, plain_prompt
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


@dataclass(slots=True)
class _Found:
    """What is known of a prompt without tokenizing anything, and the pieces that are still to be tokenized."""

    tokens: int
    missing: list[str]
    unsure: tuple[str, ...]


class TemplateCounter:
    """Counts prompts for one model. Never raises for what a request holds: what cannot be rendered is unsure."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, memo: Memo, pool: CountingPool) -> None:
        self._template = template
        self._tokenizer = tokenizer
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
        found = self._find(body)
        if sum(map(len, found.missing)) > INLINE_CHARACTERS:
            return await self._pool.run(self._finish, found, limit)
        return self._finish(found, limit)

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

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        """A beginning and an end of so many tokens at most."""
        if characters_to_count(text, head_tokens, tail_tokens) > INLINE_CHARACTERS:
            cut = await self._pool.run(self._clip, text, head_tokens, tail_tokens)
        else:
            cut = self._clip(text, head_tokens, tail_tokens)
        return text[: cut.head], text[cut.tail :]

    def _clip(self, text: str, head_tokens: int, tail_tokens: int) -> Cut:
        one = self._tokenizer
        return remembered_cut(self._memo, one.name, one.count, text, head_tokens, tail_tokens)

    def _count_body(self, body: Mapping[str, Any], limit: int | None) -> Counts:
        return self._finish(self._find(body), limit)

    def _find(self, body: Mapping[str, Any]) -> _Found:
        plain = plain_prompt(body)
        if plain is None:
            prompt = self._render(body)
            return self._look_up(_Found(0, [], prompt.unsure), [prompt.text])
        tokens, reasons = self._around(plain, body)
        return self._look_up(_Found(tokens, [], reasons), map(_whole, plain.texts))

    def _around(self, prompt: PlainPrompt, body: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
        """What a plain prompt has besides its texts, and why it may not be all.

        vLLM 0.32 adds special tokens unless asked not to (entrypoints/openai/completion/protocol.py); llama.cpp
        always does, if its model says so (tools/server/server.cpp, `handle_completions_oai`).
        """
        reasons = dict(prompt.unsure)
        if any(_whole(text) is not text for text in prompt.texts):
            reasons[_SURROGATES] = None
        if not prompt.first or (body.get("add_special_tokens") is False and not self._template.on_llama_cpp):
            return prompt.ids, tuple(reasons)
        added = self._tokenizer.added
        if added is None:
            added = 1
            reasons["whether the server adds a token at the beginning of a plain prompt"] = None
        return prompt.ids + len(prompt.first) * added, tuple(reasons)

    def _render(self, body: Mapping[str, Any]) -> Prompt:
        try:
            prompt = self._template.render(body)
        except TemplateRefused as refused:
            # The server will say so itself; meanwhile the texts alone are the best guess.
            text = "\n".join(_texts(body))
            prompt = Prompt(text, (f"the template does not take this request: {refused}",))
        text = _whole(prompt.text)
        return prompt if text is prompt.text else Prompt(text, (*prompt.unsure, _SURROGATES))

    def _look_up(self, found: _Found, texts: Iterable[str]) -> _Found:
        remembered = self._segments.known
        for text in texts:
            for piece in self._segments.cut(text):
                tokens = remembered(piece)
                if tokens is None:
                    found.missing.append(piece)
                else:
                    found.tokens += tokens
        return found

    def _finish(self, found: _Found, limit: int | None) -> Counts:
        if limit is None:
            return Counts(found.tokens + sum(map(self._segments.count, found.missing)), unsure=found.unsure)
        rest = self._segments.count_upto(found.missing, limit - found.tokens)
        return Counts(found.tokens + rest.tokens, rest.complete, found.unsure)

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


def _whole(text: str) -> str:
    """The very text, or where halves of surrogate pairs are in it, one without."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text)
    return text


def _renders_quickly(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    return not (isinstance(messages, list) and len(messages) > INLINE_MESSAGES) and is_small(body)


def _key(unit: Sequence[Any]) -> str:
    return digestible(unit).decode("latin-1")


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
