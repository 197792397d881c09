"""Texts are counted exactly, whatever they hold, and a count up to a limit does little more than that."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.encodings import encoding
from proxy.tokens.memo import Memo
from proxy.tokens.text import SMALLEST_SLICE, TextCounter
from tests.unit.tokens.test_slices import BASES, texts


def counter(name: str = "o200k_base") -> TextCounter:
    return TextCounter(encoding(name), Memo(10_000))


def true_count(text: str, name: str = "o200k_base") -> int:
    return len(encoding(name).encode(text, disallowed_special=()))


@given(texts)
@settings(max_examples=300, deadline=None)
def test_a_count_is_tiktokens(text: str) -> None:
    for name in BASES:
        assert counter(name).count(text) == true_count(text, name)


@given(texts)
@settings(max_examples=300, deadline=None)
def test_the_way_round_the_pattern_engines_limit_counts_the_same(text: str) -> None:
    for name in BASES:
        assert counter(name)._encode_pieces(text) == true_count(text, name)


def test_special_tokens_in_a_text_are_plain_text() -> None:
    assert counter("cl100k_base").count("<|endoftext|>") == 7


def test_a_lone_surrogate_is_counted_as_the_replacement_character() -> None:
    assert counter().count("a\ud83d b") == true_count("a\ufffd b")
    assert counter().count("\ud83d\ude00") == true_count("😀")


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("", "x"), ("hi", "\n x")])
def test_a_million_spaces_are_counted_exactly(name: str, before: str, after: str) -> None:
    spaces = " " * 1_000_000
    pieces = {
        "": [spaces],
        "x": [spaces[1:], " x"],
        "\n x": [spaces + "\n", " x"],
    }[after]
    expected = sum(len(encoding(name)._encode_single_piece(piece)) for piece in pieces)
    assert counter(name).count(before + spaces + after) == true_count(before, name) + expected


def test_a_text_is_encoded_once() -> None:
    one = counter()
    first = one.count("hello there")
    work = one.encoded_tokens
    assert one.count("hello there") == first
    assert one.encoded_tokens == work == first
    assert one.known("hello there") == first
    assert one.known("hello") is None


@given(
    st.lists(st.one_of(texts, st.integers(1, 40).map(lambda n: "word, " * n)), max_size=8),
    st.integers(0, 300),
)
@settings(max_examples=400, deadline=None)
def test_a_count_up_to_a_limit_is_exact_or_over_it(parts: list[str], limit: int) -> None:
    one = counter()
    found = one.count_upto(parts, limit)
    exact = sum(map(true_count, parts))
    assert found.complete == (exact <= limit)
    if found.complete:
        assert found.tokens == exact
    else:
        assert limit < found.tokens <= exact
    assert found.encoded == one.encoded_tokens


def test_thirty_megabytes_cost_little_more_than_the_limit() -> None:
    vocabulary = ["alpha", "beta", "{", "}", "12,", "Straße", "end.\n", "naïve", "x=1;", "你好\uff0c"]
    choose = random.Random(7)
    prompt = " ".join(choose.choices(vocabulary, k=6000)) * 1000
    assert len(prompt.encode()) > 30_000_000
    for limit in (1000, 8000, 128_000):
        one = counter()
        found = one.count_upto([prompt], limit)
        assert not found.complete
        assert found.tokens > limit
        assert one.encoded_tokens <= 1.1 * limit


@pytest.mark.parametrize(
    "unit", ["a", "ab", "字", "的是", "\u0301", " ", "😀", "=", "\ud83d", "aB3", "\n", "ก็", "1", "'s"]
)
@pytest.mark.parametrize("limit", [1000, 20_000])
def test_a_text_without_cuts_costs_no_more_either(unit: str, limit: int) -> None:
    one = counter()
    found = one.count_upto([unit * (3_000_000 // len(unit))], limit)
    assert not found.complete
    assert found.tokens > limit
    assert one.encoded_tokens <= 1.1 * limit


@given(
    st.lists(
        st.sampled_from(["一", "的", "是不", "𠀀", "ab", "ABab", "ก", "\u0301"]), min_size=200, max_size=700
    ),
    st.integers(-60, 60),
)
@settings(max_examples=150, deadline=None)
def test_a_lower_bound_from_inexact_cuts_is_one(parts: list[str], beside: int) -> None:
    text = "".join(parts)
    exact = true_count(text)
    limit = max(0, exact + beside)
    found = counter().count_upto([text], limit)
    assert found.tokens <= exact
    assert found.complete == (exact <= limit)


def test_a_known_text_costs_nothing_and_decides_first() -> None:
    one = counter()
    history = "all of the history " * 400
    one.count(history)
    work = one.encoded_tokens
    found = one.count_upto(["new words " * 50_000, history], 500)
    assert not found.complete
    assert found.encoded == 0
    assert one.encoded_tokens == work


def test_many_small_texts_stop_at_the_limit() -> None:
    one = counter()
    found = one.count_upto([f"message number {number} of many" for number in range(10_000)], 1000)
    assert not found.complete
    assert one.encoded_tokens < 1000 + SMALLEST_SLICE


def test_a_limit_below_nothing_is_passed_at_once() -> None:
    found = counter().count_upto(["hello"], -5)
    assert (found.complete, found.encoded) == (False, 0)
