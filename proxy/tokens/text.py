"""Counting the tokens of texts with one encoding: exactly, for any str, and never for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import regex  # type: ignore[import-untyped]
import tiktoken

from proxy.tokens.memo import Memo
from proxy.tokens.slices import last_cut

# A character is at most four bytes of UTF-8, and a token at least one byte.
MOST_TOKENS_PER_CHARACTER = 4
# What a count up to a limit may encode in all, as a multiple of the limit.
OVERSHOOT_NUMERATOR, OVERSHOOT_DENOMINATOR = 11, 10
SMALLEST_SLICE = 16
# How far a cut inside a piece may raise the sum of the parts over the whole. Merging is local: only tokens
# near the cut change, one for each of the seven doublings up to the longest token (128 bytes), or so.
SLACK_PER_UNSAFE_CUT = 8


class UpTo(NamedTuple):
    """A count that may have stopped early: then `tokens` is a lower bound. `encoded`: tokens made for it."""

    tokens: int
    complete: bool
    encoded: int


class TextCounter:
    """Counts texts with one encoding and remembers what it counted.

    `encoded_tokens` is the number of tokens that were really made so far, the measure of work done. It
    is not locked: with several threads it is a close estimate.
    """

    def __init__(self, encoding: tiktoken.Encoding, memo: Memo) -> None:
        self._encoding = encoding
        self._memo = memo
        self.encoded_tokens = 0

    @property
    def encoding_name(self) -> str:
        return self._encoding.name

    def known(self, text: str) -> int | None:
        """The remembered count of a text, or None: no text is encoded."""
        return self._memo.get(self._encoding.name, text)

    def count_anew(self, text: str) -> int:
        """The tokens of a text that is not worth to be remembered."""
        return self._encode(text)

    def special_in(self, text: str) -> bool:
        """Whether the name of a special token stands in a text."""
        # All of them look like this, and a harmony encoding has a thousand.
        return "<|" in text and any(token in text for token in self._encoding.special_tokens_set)

    def count(self, text: str) -> int:
        """The tokens of a text, special tokens in it read as plain text, as the API does."""
        tokens = self._memo.get(self._encoding.name, text)
        if tokens is None:
            tokens = self._encode(text)
            self._memo.put(self._encoding.name, text, tokens)
        return tokens

    def count_upto(self, texts: Sequence[str], limit: int) -> UpTo:
        """Count texts until their sum is surely over `limit`.

        At most 1.1 times the limit is encoded (or a few of the smallest slices, if that is more), with one
        exception: a long text without an exact cut in reach that ends under the limit is encoded once more
        to be exact.
        """
        before = self.encoded_tokens
        total = 0
        missing: list[str] = []
        # What is remembered comes first: it costs nothing and may decide alone.
        for text in texts:
            tokens = self.known(text)
            if tokens is None:
                missing.append(text)
            else:
                total += tokens
        for text in missing:
            if total > limit:
                break
            tokens, whole = self._count_one(text, total, limit)
            total += tokens
            if not whole:
                return UpTo(total, False, self.encoded_tokens - before)
        return UpTo(total, total <= limit, self.encoded_tokens - before)

    def _count_one(self, text: str, others: int, limit: int) -> tuple[int, bool]:
        """Tokens of one text beside `others`, and whether it was counted to its end."""
        most = limit * OVERSHOOT_NUMERATOR // OVERSHOOT_DENOMINATOR
        if len(text) * MOST_TOKENS_PER_CHARACTER <= most - others:
            return self.count(text), True
        known = self.known(text)  # a text given twice was missing twice, but is encoded once
        if known is not None:
            return known, True
        start, total, slack = 0, 0, 0
        while start < len(text):
            size = max(SMALLEST_SLICE, (most - others - total) // MOST_TOKENS_PER_CHARACTER)
            end = start + size
            if end >= len(text):
                end = len(text)
            else:
                exact = last_cut(text, start, end, self._encoding.name)
                if exact is None:
                    # Never inside a pair of surrogates: the tokenizer reads it as one character.
                    if "\udc00" <= text[end] <= "\udfff" and "\ud800" <= text[end - 1] <= "\udbff":
                        end -= 1
                    # The slack may not eat the room between the limit and the most that is encoded.
                    slack = min(slack + SLACK_PER_UNSAFE_CUT, limit // 20)
                else:
                    end = exact
            total += self._encode(text[start:end])
            if others + total - slack > limit:
                return total - slack, False
            start = end
        if slack:
            return self.count(text), True
        self._memo.put(self._encoding.name, text, total)
        return total, True

    def _encode(self, text: str) -> int:
        try:
            tokens = len(self._encoding.encode(text, disallowed_special=()))
        except ValueError:
            # The pattern engine gives up on about a million whitespace characters in a row ("Max stack size
            # exceeded for backtrack", tiktoken #400).
            tokens = self._encode_pieces(text)
        self.encoded_tokens += tokens
        return tokens

    def _encode_pieces(self, text: str) -> int:
        """Count with the `regex` module (a dependency of tiktoken) for splitting: slower, without a stack."""
        # As tiktoken does: pairs of surrogates are joined, lone ones replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        single = self._encoding._encode_single_piece
        pieces = regex.finditer(self._encoding._pat_str, text)
        return sum(len(single(piece.group().encode())) for piece in pieces)
