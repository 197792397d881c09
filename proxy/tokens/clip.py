"""Where to cut a text so that its beginning and its end have so many tokens. Pure: whoever drives it counts.

A search over sizes in characters: guesses by the density seen so far, alternating with halving, so that it ends
after about twice the logarithm of the size whatever the text. It depends on the text, the numbers and the
counts only, so every process cuts alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Final, NamedTuple, TypeAlias

import regex  # type: ignore[import-untyped]

from proxy.tokens.memo import Memo
from proxy.tokens.slices import first_cut, last_cut

CHARACTERS_PER_TOKEN: Final = 4
"""The first guess: English prose, OpenAI's rule of thumb."""
PROBES: Final = 8
"""Texts that are counted for one end, as a rule, each about as long as the answer."""

_MOST_GUESSED: Final = 1.1
"""How far beyond its guess a search looks for a text that is too long: it needs one on either side."""
_REACH: Final = 32
"""How far to look for the end of a word: cut there, the parts have the tokens that they had in the whole."""
_LONGEST_GRAPHEME: Final = 64
"""Of a longer one (a letter under a thousand marks) the code points are what is not cut."""
_SPLITS_LIKE: Final = "o200k_base"  # the rules of `slices` for modern encodings; others split at words, too

# Two halves of a surrogate pair are one character, but no cluster to `regex`.
_GRAPHEME = regex.compile(r"[\ud800-\udbff][\udc00-\udfff]\p{M}*|\X")


class Cut(NamedTuple):
    """The beginning ends at `head`, the end begins at `tail`, which is not before it."""

    head: int
    tail: int


Search: TypeAlias = Generator[str, int, Cut]
"""Yields texts, is sent their counts, returns the places."""


def search(text: str, head_tokens: int, tail_tokens: int) -> Search:
    """The longest beginning and, of what is left, the longest end. `drive` or `drive_async` it."""
    head = yield from _head(text, head_tokens)
    tail = yield from _tail(text, head, tail_tokens)
    return Cut(head, tail)


def drive(searching: Search, count: Callable[[str], int]) -> Cut:
    """Run a search with a count at hand."""
    try:
        text = next(searching)
        while True:
            text = searching.send(count(text))
    except StopIteration as done:
        cut: Cut = done.value
        return cut


async def drive_async(searching: Search, count: Callable[[str], Awaitable[int]]) -> Cut:
    """Run a search with counts that must be asked for."""
    try:
        text = next(searching)
        while True:
            text = searching.send(await count(text))
    except StopIteration as done:
        cut: Cut = done.value
        return cut


def remembered_cut(
    memo: Memo, name: str, count: Callable[[str], int], text: str, head_tokens: int, tail_tokens: int
) -> Cut:
    """The places, for the second time without a count. Counts of one `name` are alike."""
    key = f"clip {head_tokens} {tail_tokens} {name}"
    both = memo.get(key, text)
    if both is None:
        cut = drive(search(text, head_tokens, tail_tokens), count)
        memo.put(key, text, pack(cut, text))
        return cut
    return unpack(both, text)


def pack(cut: Cut, text: str) -> int:
    """Both places in one number, as memos keep them."""
    return cut.head * (len(text) + 1) + cut.tail


def unpack(both: int, text: str) -> Cut:
    """The places from that number."""
    return Cut(*divmod(both, len(text) + 1))


def characters_to_count(text: str, head_tokens: int, tail_tokens: int) -> int:
    """About how many characters a search will count: what decides where it runs."""
    ends = CHARACTERS_PER_TOKEN * (max(head_tokens, 0) + max(tail_tokens, 0))
    return PROBES * min(ends, 2 * len(text))


def _head(text: str, limit: int) -> Generator[str, int, int]:
    size = yield from _longest(_Beginnings(text), len(text), limit)
    if 0 < size < len(text):
        end = last_cut(text, size - _reach(size), size, _SPLITS_LIKE)
        if end is not None and (end == size or (yield text[:end]) <= limit):
            return end
    return size


def _tail(text: str, head: int, limit: int) -> Generator[str, int, int]:
    most = len(text) - head
    size = yield from _longest(_Ends(text), most, limit)
    start = len(text) - size
    if 0 < size < most:
        near = first_cut(text, start, start + _reach(size), _SPLITS_LIKE)
        if near is not None and (near == start or (yield text[near:]) <= limit):
            return near
    return start


def _reach(size: int) -> int:
    return min(_REACH, size // 4)


class _Beginnings:
    """A text's beginnings by their size in characters, and the nearest sizes that part no character."""

    def __init__(self, text: str) -> None:
        self._text = text

    def piece(self, size: int) -> str:
        return self._text[:size]

    def below(self, size: int) -> int:
        return _nearest_whole(self._text, size)[0]

    def above(self, size: int) -> int:
        return _nearest_whole(self._text, size)[1]


class _Ends:
    """The same of its ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._whole = len(text)

    def piece(self, size: int) -> str:
        return self._text[self._whole - size :]

    def below(self, size: int) -> int:
        return self._whole - _nearest_whole(self._text, self._whole - size)[1]

    def above(self, size: int) -> int:
        return self._whole - _nearest_whole(self._text, self._whole - size)[0]


def _longest(side: _Beginnings | _Ends, most: int, limit: int) -> Generator[str, int, int]:
    """A size whose piece has at most `limit` tokens, while the next larger one has more; or `most`.

    With a count that is not quite monotonic there may be several such sizes; it is one of them.
    """
    if limit <= 0:
        return 0
    low, low_tokens = 0, 0  # fits
    high, high_tokens = most + 1, 0  # does not; of the text's own end nothing is known yet
    guess = float(limit * CHARACTERS_PER_TOKEN)
    halve = False
    while True:
        size = side.below(min(max(int(guess), low + 1), high - 1))
        if size <= low:  # within one character
            size = side.above(low + 1)
        if not low < size < high:
            return low
        tokens = yield side.piece(size)
        if tokens <= limit:
            low, low_tokens = size, tokens
        else:
            high, high_tokens = size, tokens
        if not high_tokens:
            guess = _MOST_GUESSED * limit * low / max(low_tokens, 1)
            if halve:  # the text may grow thinner all the way: the steps must grow then, too
                guess = max(guess, low * 2.0)
        elif halve:
            guess = (low + high) / 2
        else:
            # Where the limit and a half would be, if tokens were spread evenly between the two.
            guess = low + (high - low) * (limit + 0.5 - low_tokens) / (high_tokens - low_tokens)
        halve = not halve


def _nearest_whole(text: str, at: int) -> tuple[int, int]:
    """The places before and after `at`, or `at` twice, between which nothing may be cut.

    Characters as a reader sees them (Unicode's grapheme clusters): letters with their marks, emoji sequences.
    """
    if at <= 0 or at >= len(text):
        return at, at
    if text[at - 1].isascii() and text[at].isascii() and text[at] != "\n":
        return at, at
    low, high = max(0, at - _LONGEST_GRAPHEME), min(len(text), at + _LONGEST_GRAPHEME)
    for found in _GRAPHEME.finditer(text, low, high):
        start, end = found.span()
        if end < at:
            continue
        if end == at:
            break
        if (start > low or low == 0) and (end < high or end == len(text)):
            return start, end
        break
    if "\udc00" <= text[at] <= "\udfff" and "\ud800" <= text[at - 1] <= "\udbff":
        return at - 1, at + 1
    return at, at
