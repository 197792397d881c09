"""Where a text can be cut so that its tokens are exactly those of the two parts.

An encoding first splits text into pieces by its pattern, then merges bytes inside each piece. So a cut is
exact when the pattern ends a piece there whatever follows, and still does when the text ends there. The
patterns never look behind, so the right part needs no care; they look ahead in three ways only:
contractions ("'ll"), the end of a run of whitespace (`\\s++$`, `\\s+(?!\\S)`), and greed.

The kinds of cut used here, L being the character before and R the one after:

1. L a letter or number, R whitespace or one of a fixed list of punctuation. A piece holding L is letters
   (a contraction's too), or numbers, after at most one other character, so it ends at L: R is neither.
   R is not an apostrophe, because o200k's words swallow contractions, and not a mark, which o200k counts
   among letters: hence a fixed list.
2. L a decimal digit and R an ASCII letter, or the reverse. No alternative holds both.
3. L a newline, R neither whitespace nor "/" (cl100k and o200k only). Punctuation swallows newlines after it
   (o200k: also "/"), and a whitespace run up to its last newline is one piece by `\\s*[\\r\\n]+`, or at the
   end of the left part by `\\s++$`: the same piece. p50k and r50k leave the last whitespace character of a
   run to the next piece, so there only a newline that stands alone will do.

Python's view of Unicode may be older than the tokenizer's: a letter that it does not know is no `\\w`, so
it is never L. Surrogates, which the tokenizer joins or replaces, are never on either side of a cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Unicode White_Space, what Rust's \s means; Python's \s has U+001C to U+001F as well.
WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# ASCII punctuation without the apostrophe, and the marks that end clauses where words have no spaces.
_PUNCTUATION = r"!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~。，、！？；：「」『』（）《》【】…—"  # noqa: RUF001

_WORD_END = rf"[^\W_](?=[{WHITESPACE}{_PUNCTUATION}])"
_DIGIT_EDGE = r"\d(?=[A-Za-z])|[A-Za-z](?=\d)"
_LINE_END = r"[\r\n](?=[^\s/\ud800-\udfff])"
_LONE_LINE_END = r"(?<=[^\s])[\r\n](?=[^\s/\ud800-\udfff])"

_MODERN = re.compile(f"{_WORD_END}|{_DIGIT_EDGE}|{_LINE_END}")
_OLD = re.compile(f"{_WORD_END}|{_DIGIT_EDGE}|{_LONE_LINE_END}")
_OLD_ENCODINGS = frozenset({"p50k_base", "p50k_edit", "r50k_base", "gpt2"})

_REACH = 512  # a window searched from the back first: prose and code have a cut every few characters


def _pattern(encoding: str) -> re.Pattern[str]:
    return _OLD if encoding in _OLD_ENCODINGS else _MODERN


def cuts(text: str, encoding: str) -> Iterator[int]:
    """Every known exact cut of a text, rising; never 0 or its length."""
    return (found.end() for found in _pattern(encoding).finditer(text))


def last_cut(text: str, start: int, end: int, encoding: str) -> int | None:
    """The last exact cut in (start, end], or None. `end` must lie inside the text."""
    pattern = _pattern(encoding)
    low = max(start, end - _REACH)
    while True:
        found = None
        # One character past the window, so that a cut at `end` itself can be seen.
        for found in pattern.finditer(text, low, min(len(text), end + 1)):  # noqa: B007
            pass
        if found is not None and found.end() > start:
            return found.end()
        if low == start:
            return None
        low = start


def first_cut(text: str, start: int, end: int, encoding: str) -> int | None:
    """The first exact cut in [start, end], or None. `start` must lie inside the text, not at its beginning."""
    # From the character before, so that a cut at `start` itself can be seen.
    for found in _pattern(encoding).finditer(text, start - 1, min(len(text), end + 1)):
        if start <= found.end() <= end:
            return found.end()
    return None
