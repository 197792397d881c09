"""Counting a rendered prompt by the pieces that its special tokens cut it into.

What lies between two special tokens is tokenized by itself, so a count by pieces equals a count of the whole
and what was seen before is remembered piece by piece: a turn of a conversation costs its new text. A piece
begins with its special token and ends before the next. Whether a tokenizer really works so is tried when it is
loaded, on texts made to find where it does not; then whole prompts are counted and remembered instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from proxy.tokens.memo import Memo
from proxy.tokens.text import MOST_TOKENS_PER_CHARACTER, OVERSHOOT_DENOMINATOR, OVERSHOOT_NUMERATOR, UpTo
from proxy.tokens.tokenizer_files import Tokenizer

SMALLEST_SLICE = 64
# How far one cut inside a text may raise the sum of the parts over the whole: merging is local, but not every
# tokenizer splits first, so this is more than for OpenAI's encodings. It only ever lowers an "at least".
SLACK_PER_CUT = 16

# Beginnings, ends and insides that tokenizers treat by rules of their own: spaces at either side, runs of them,
# line ends, what normalizers compose, fold or drop, marks that would join a character before them, digits,
# contractions, the space of sentencepiece, bytes without a token, halves of a special token.
_NASTY = (
    "word",
    " word",
    "word ",
    "  two  spaces  ",
    "\n",
    "\n\n leading lines\n\n",
    "\t\ttabs\t",
    " ",
    "      ",
    "\u00a0nbsp\u3000wide\u2009",
    "\u2581meta \u2581",
    "e\u0301 composed \u00e9 \u212b \ufb01",
    "\u0301 mark first",
    "\u0338\u200d\ufe0f",
    "12345 67,890.12",
    "'s 'LL don't",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u0645\u0631\u062d\u0628\u0627 \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f3fd",
    "\x00\x01\x7f\x1b[0m",
    "<|", "|>", "<", ">", "</", "[", "]", "<s", "\uff5c>",
    "def f(x):\n    return {'a': [1, 2]}  # no\r\n",
    "a" * 70,
    "=-" * 40,
    "ALL CAPS lower Title",
)  # fmt: skip


class Cutter:
    """Finds special tokens, of several that begin alike the longest, as tokenizers do."""

    def __init__(self, special: Sequence[str]) -> None:
        self._pattern = re.compile(_any_of(special) if special else r"(?!)")

    def cut(self, text: str) -> list[str]:
        """The text in pieces, each but the first beginning with a special token."""
        starts = [found.start() for found in self._pattern.finditer(text)]
        if not starts:
            return [text] if text else []
        starts.append(len(text))
        pieces = [text[start:end] for start, end in pairwise(starts)]
        if starts[0]:
            pieces.insert(0, text[: starts[0]])
        return pieces

    def tokens_and_rests(self, text: str) -> Iterator[tuple[str, str]]:
        """Each special token with the text that follows it; first what stands before them all, after ""."""
        token, start = "", 0
        for found in self._pattern.finditer(text):
            yield token, text[start : found.start()]
            token, start = found.group(), found.end()
        yield token, text[start:]


def _any_of(words: Sequence[str]) -> str:
    """A pattern for any of the words, as a trie: plain alternatives would all be tried at every "<"."""
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(trie)


def _pattern(node: dict[str, Any]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:  # a chain, written flat: nesting is as deep as there are forks
        [(character, node)] = node.items()
        prefix += re.escape(character)
    branches = [re.escape(character) + _pattern(below) for character, below in node.items() if character]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in node else ''}"


class SegmentCounter:
    """Counts prompts with one tokenizer, remembering their pieces.

    `encoded_tokens`: the tokens really made so far, the measure of work done; not locked.
    """

    def __init__(self, tokenizer: Tokenizer, memo: Memo) -> None:
        self._tokenizer = tokenizer
        self._memo = memo
        self.dividers = dividers(tokenizer)
        self._cutter = Cutter(self.dividers)
        self.encoded_tokens = 0

    @property
    def whole(self) -> bool:
        """Whether prompts are counted whole, this tokenizer having no piece that stands alone."""
        return not self.dividers

    def cut(self, text: str) -> list[str]:
        """The pieces whose counts add up to the text's."""
        return self._cutter.cut(text)

    def known(self, piece: str) -> int | None:
        """The remembered count of a piece, or None: nothing is tokenized."""
        return self._memo.get(self._tokenizer.name, piece)

    def count(self, piece: str) -> int:
        """The tokens of one piece."""
        tokens = self._memo.get(self._tokenizer.name, piece)
        if tokens is None:
            tokens = self._encode(piece)
            self._memo.put(self._tokenizer.name, piece, tokens)
        return tokens

    def count_upto(self, pieces: Sequence[str], limit: int) -> UpTo:
        """Count pieces until their sum is surely over `limit`.

        At most 1.1 times the limit is tokenized, or a few of the smallest slices if that is more; a long piece
        that ends under the limit is tokenized once more, to be exact.
        """
        before = self.encoded_tokens
        total = 0
        for piece in pieces:
            if total > limit:
                break
            tokens, whole = self._count_one(piece, total, limit)
            total += tokens
            if not whole:
                return UpTo(total, False, self.encoded_tokens - before)
        return UpTo(total, total <= limit, self.encoded_tokens - before)

    def _count_one(self, piece: str, others: int, limit: int) -> tuple[int, bool]:
        """Tokens of one piece beside `others`, and whether it was counted to its end."""
        most = limit * OVERSHOOT_NUMERATOR // OVERSHOOT_DENOMINATOR
        if len(piece) * MOST_TOKENS_PER_CHARACTER <= max(most - others, SMALLEST_SLICE):
            return self.count(piece), True
        known = self.known(piece)
        if known is not None:
            return known, True
        start, total, slack = 0, 0, 0
        while start < len(piece):
            end = start + max(SMALLEST_SLICE, (most - others - total) // MOST_TOKENS_PER_CHARACTER)
            total += self._encode(piece[start:end])
            if end < len(piece):
                slack = min(slack + SLACK_PER_CUT, limit // 20)
            if others + total - slack > limit:
                return total - slack, False
            start = end
        if slack:
            return self.count(piece), True
        self._memo.put(self._tokenizer.name, piece, total)
        return total, True

    def _encode(self, text: str) -> int:
        tokens = self._tokenizer.count(text)
        self.encoded_tokens += tokens
        return tokens


def dividers(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Those of a tokenizer's special tokens before which any text may be cut; none if that is not sure."""
    count = tokenizer.count
    good = []
    for number, token in enumerate(tokenizer.special):
        left, right = _NASTY[number % len(_NASTY)], _NASTY[(number * 7 + 3) % len(_NASTY)]
        if count(left + token + right) == count(left) + count(token + right):
            good.append(token)
    cut = Cutter(good).cut
    if all(count(text) == sum(map(count, cut(text))) for text in _trials(good)):
        return tuple(good)
    return ()


def _trials(special: Sequence[str]) -> Iterator[str]:
    """Every nasty text on either side of a few special tokens, tokens side by side, and a long chain of all."""
    if not special:
        return
    step = max(1, len(special) // 6)
    chosen = list(dict.fromkeys([*special[::step], min(special, key=len), max(special, key=len)]))
    for number, text in enumerate(_NASTY):
        for token in chosen:
            other = chosen[number % len(chosen)]
            yield text + token + text
            yield token + text + other + other + text
    for shift in range(4):
        yield "".join(
            text + special[(number * 5 + shift) % len(special)] + _NASTY[number - shift]
            for number, text in enumerate(_NASTY)
        )
