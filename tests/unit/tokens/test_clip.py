"""A text's two ends, as long as their tokens allow: never more, never in the middle of a character."""

import math
from collections.abc import Callable

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.tokens.clip import Cut, drive, drive_async, search
from proxy.tokens.encodings import encoding


def tokens(text: str) -> int:
    return len(encoding("cl100k_base").encode(text, disallowed_special=()))


def utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def words(text: str) -> int:
    return len(text.split())


COUNTS = [tokens, utf8_bytes, words, len]
PIECES = [
    "word ", "a", " ", "\n", "\r\n", "你好", "。", "e\u0301", "\u0301\u0302", "👩\u200d👩\u200d👧", "👍🏽", "🇵🇹🇪🇸", "1️⃣",
    "\ud83d\ude00", "\ud83d", "\ude00", "{\"key\": [1, 2]}", "aGVsbG8gd29ybGQ", "각", "क्षि", "\x00",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join)
limits = st.integers(-1, 40)


def cut(text: str, head_tokens: int, tail_tokens: int, count: Callable[[str], int] = tokens) -> Cut:
    return drive(search(text, head_tokens, tail_tokens), count)


@pytest.mark.parametrize("count", COUNTS)
@given(text=texts, head=limits, tail=limits)
@example(text="👩\u200d" * 30, head=9, tail=9)
@settings(max_examples=400, deadline=None)
def test_both_ends_hold_at_most_what_was_asked(
    count: Callable[[str], int], text: str, head: int, tail: int
) -> None:
    at = cut(text, head, tail, count)
    assert 0 <= at.head <= at.tail <= len(text)
    assert count(text[: at.head]) <= max(head, 0)
    assert count(text[at.tail :]) <= max(tail, 0)


@given(text=texts, head=limits, tail=limits)
@settings(max_examples=400, deadline=None)
def test_no_character_is_parted(text: str, head: int, tail: int) -> None:
    # Pairs of surrogates as the one character that they are.
    whole = regex.findall(r"[\ud800-\udbff][\udc00-\udfff]\p{M}*|\X", text)
    places = {0}
    for cluster in whole:
        places.add(max(places) + len(cluster))
    assert set(cut(text, head, tail)) <= places


@pytest.mark.parametrize("count", [utf8_bytes, len])
@given(text=texts, head=limits, tail=limits)
def test_they_are_as_long_as_they_can_be(
    count: Callable[[str], int], text: str, head: int, tail: int
) -> None:
    at = cut(text, head, tail, count)
    # One more character as a reader sees it is too much, but for what went for the sake of a word's end.
    longest = max(map(len, regex.findall(r"\X", text)), default=0)
    if at.head < len(text):
        assert count(text[: at.head + at.head // 3 + 1 + longest]) > head
    if at.head < at.tail:
        kept = len(text) - at.tail
        assert count(text[max(at.head, at.tail - kept // 3 - 1 - longest) :]) > tail


@given(text=texts, head=limits, tail=limits)
@settings(deadline=None)
def test_a_text_with_room_for_all_of_it_stays_whole(text: str, head: int, tail: int) -> None:
    at = cut(text, head, tail, utf8_bytes)
    longest = max(map(utf8_bytes, regex.findall(r"\X", text)), default=0)
    if utf8_bytes(text) + 4 * 32 + longest <= max(head, 0) + max(tail, 0):
        assert at.head == at.tail


@pytest.mark.parametrize(
    "text",
    [
        "All work and no play. " * 10_000,
        "漢字" * 50_000,
        " " * 300_000 + "x",
        "a" * 200_000,
        "x" * 5000 + "漢字" * 50_000 + " " * 100_000,
        "\u0301" * 100_000,
        "👩\u200d" * 40_000,
    ],
)
@pytest.mark.parametrize("limit", [1, 30, 1000])
def test_few_counts_of_texts_not_much_longer_than_the_answer(text: str, limit: int) -> None:
    asked: list[str] = []

    def count(piece: str) -> int:
        asked.append(piece)
        return tokens(piece)

    at = cut(text, limit, limit, count)
    for size in (at.head, len(text) - at.tail):
        assert size > 0 or limit == 1
    assert len(asked) <= 4 * math.log2(len(text))
    answer = max(at.head, len(text) - at.tail)
    assert max(map(len, asked)) <= max(4 * limit, 8 * answer)


@given(text=texts, head=limits, tail=limits)
@settings(deadline=None)
def test_words_stay_whole_where_there_are_words(text: str, head: int, tail: int) -> None:
    sentence = "alphabet soup, " * 40 + text
    at = cut(sentence, 20, 0)
    assert sentence[: at.head].endswith(("alphabet", "soup", ",", " "))
    assert tokens(sentence[: at.head]) + tokens(sentence[at.head :]) == tokens(sentence)


def test_a_beginning_and_an_end_of_prose() -> None:
    text = "".join(f"This is line {number}.\n" for number in range(1000))
    at = cut(text, 20, 12)
    assert text[: at.head] == "This is line 0.\nThis is line 1.\nThis is line 2.\nThis is"
    assert text[at.tail :] == "This is line 998.\nThis is line 999.\n"


async def test_counts_that_must_be_asked_for_give_the_same_answer() -> None:
    async def ask(text: str) -> int:
        return tokens(text)

    text = "Lorem ipsum dolor sit amet, " * 100
    assert await drive_async(search(text, 50, 50), ask) == cut(text, 50, 50)
