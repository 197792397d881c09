"""Where things stand in a JSON text, and edits that leave every other character as it was. Pure.

This is the second scan of a body, made only when something must change: the parse says what is there,
this says where. Values are jumped over with the standard library's C scanner, which reads what Python's
own `json` reads (RFC 8259, and the constants NaN and Infinity). Positions are in characters of the text.
Errors are plain ValueErrors that name a position and never quote the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from json import JSONDecodeError, JSONDecoder, dumps
from typing import Final, NamedTuple, NoReturn

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Values are thrown away. Numbers are left as text because int() refuses more than 4,300 digits, which
# orjson takes as a float. `strict=False` lets control characters in strings pass, as the parse did.
_SCANNER: Final = JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)


class Member(NamedTuple):
    """One member of an object: its key, unescaped, the key's opening quote, and its value's span."""

    key: str
    start: int
    value_start: int
    value_end: int


class Splice(NamedTuple):
    """Put `text` in place of the characters `start` to `end` (exclusive)."""

    start: int
    end: int
    text: str


def scan_object(text: str) -> tuple[Member, ...]:
    """Members of the object that is the whole text, in order; repeated keys are all there."""
    at = _skip(text, 0)
    _expect(text, at, "{")
    members: list[Member] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        while True:
            _expect(text, at, '"')
            key, key_end = _value(text, at)
            colon = _skip(text, key_end)
            _expect(text, colon, ":")
            value_start = _skip(text, colon + 1)
            _, value_end = _value(text, value_start)
            members.append(Member(str(key), at, value_start, value_end))
            at = _skip(text, value_end)
            if text[at : at + 1] == "}":
                break
            _expect(text, at, ",")
            at = _skip(text, at + 1)
    at = _skip(text, at + 1)
    if at != len(text):
        _refuse("nothing more", at)
    return tuple(members)


def scan_array(text: str, start: int) -> list[tuple[int, int]]:
    """Spans of the elements of the array whose '[' is at `start`; what follows its ']' is not looked at."""
    _expect(text, start, "[")
    spans: list[tuple[int, int]] = []
    at = _skip(text, start + 1)
    if text[at : at + 1] == "]":
        return spans
    while True:
        _, end = _value(text, at)
        spans.append((at, end))
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return spans
        _expect(text, at, ",")
        at = _skip(text, at + 1)


def set_member(text: str, members: Sequence[Member], key: str, value_json: str) -> Splice:
    """Give `key` of the object that is the whole text a value: replaced in place, or put in at the front.

    A key that is there twice is refused: which of the two counts is up to the upstream's parser.
    """
    there = [member for member in members if member.key == key]
    if len(there) > 1:
        raise ValueError(f"key given twice, at characters {there[0].start} and {there[1].start}")
    if there:
        return Splice(there[0].value_start, there[0].value_end, value_json)
    brace = _skip(text, 0)
    _expect(text, brace, "{")
    comma = "," if members else ""
    return Splice(brace + 1, brace + 1, f"{dumps(key)}:{value_json}{comma}")


def keep_elements(spans: Sequence[tuple[int, int]], kept: Iterable[int]) -> list[Splice]:
    """Leave only the elements `kept` (rising indices) in the array with these `spans`.

    Kept elements that were neighbours keep what stood between them; across a gap it is a plain comma.
    The space behind '[' and before ']' stays. Nothing is cut inside a kept element, which may be edited too.
    """
    if not spans:
        raise ValueError("an array without elements has none to keep")
    splices: list[Splice] = []
    last = -1
    for index in kept:
        if not last < index < len(spans):
            raise ValueError(f"kept element {index} of {len(spans)} is out of range or order")
        if index != last + 1:
            start = spans[last][1] if last >= 0 else spans[0][0]
            splices.append(Splice(start, spans[index][0], "," if last >= 0 else ""))
        last = index
    if last != len(spans) - 1:
        splices.append(Splice(spans[last][1] if last >= 0 else spans[0][0], spans[-1][1], ""))
    return splices


def locate(text: str, span: tuple[int, int], path: Iterable[str | int]) -> tuple[int, int]:
    """The span of the value that is reached from the value at `span` by keys and indices.

    Of a repeated key the last one counts, as it does for the parse. Raises ValueError where there is none.
    """
    start, end = span
    for step in path:
        if isinstance(step, int):
            elements = scan_array(text, start)
            if not 0 <= step < len(elements):
                raise ValueError(f"no element {step} at character {start}")
            start, end = elements[step]
            continue
        there = [member for member in scan_object(text[start:end]) if member.key == step]
        if not there:
            raise ValueError(f"no such key at character {start}")
        start, end = start + there[-1].value_start, start + there[-1].value_end
    return start, end


def quoted(value: str) -> str:
    """A string as JSON; a lone surrogate, which UTF-8 cannot hold, as an escape."""
    text = dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _SURROGATE.search(text) else dumps(value)


def apply(text: str, splices: Iterable[Splice]) -> str:
    """Make all edits at once, given in any order; they may touch but not overlap.

    Several insertions at one place follow each other as given.
    """
    pieces: list[str] = []
    at = 0
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.end)):
        if not at <= splice.start <= splice.end <= len(text):
            raise ValueError(f"splice {splice.start}:{splice.end} overlaps another or leaves the text")
        pieces += (text[at : splice.start], splice.text)
        at = splice.end
    pieces.append(text[at:])
    return "".join(pieces)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, char: str) -> None:
    if text[at : at + 1] != char:
        _refuse(repr(char), at)


def _value(text: str, at: int) -> tuple[object, int]:
    try:
        return _SCANNER.raw_decode(text, at)
    except JSONDecodeError as error:
        # Not passed on as it is: it carries the whole text with it.
        problem, place = error.msg, error.pos
    except RecursionError:
        problem, place = "nested too deeply", at
    raise ValueError(f"{problem} at character {place}")


def _refuse(expected: str, at: int) -> NoReturn:
    raise ValueError(f"Expecting {expected} at character {at}")
