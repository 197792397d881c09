"""Exact cuts are exact: the parts' tokens are the whole's, for every encoding and any text."""

import sys
from itertools import chain, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.tokens.encodings import RECIPES, encoding
from proxy.tokens.slices import WHITESPACE, cuts, last_cut

NASTY = [
    *"aZsStTlLmMdDvVrReE09 '\n\r\t/!.,-_([\"",
    "'s", "'LL", "'re", "\r\n", "\n\n", "  ", " \n ", "//", "\u2019", "\u017f", "\u0301", "\u093f",
    "é", "ß", "Ω", "ǅ", "ʰ", "你", "好", "。", "日本", "가", "한", "ก", "ไ", "ب", "٣", "²", "Ⅷ", "½",
    "😀", "👩\u200d👩", "\U0001f1e6", "\U00020000", "\U0001d400", "\U0001d7d9", "\ud83d", "\ude00",
    "\ud83d\ude00", "\udfff",
    "\x85", "\xa0", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\x1c", "\x1f", "\x00", "\ufffd",
    "<|endoftext|>", "123", "1234", "hello", "Hello", "HELLO", "don't", "camelCase",
]  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(NASTY), max_size=24).map("".join),
    st.lists(st.one_of(st.sampled_from(NASTY), st.characters()), max_size=16).map("".join),
    st.text(max_size=24),
)
MODERN = ("o200k_base", "cl100k_base")
BASES = ("o200k_base", "cl100k_base", "p50k_base", "r50k_base")


def tokens(text: str, name: str) -> list[int]:
    return encoding(name).encode(text, disallowed_special=())


@pytest.mark.parametrize("name", BASES)
@given(text=texts)
@example(text="a\n\nb")
@example(text="!\n/x a")
@example(text="don't I'LL a's5's")
@example(text="x \n\t\n y")
@settings(max_examples=1500, deadline=None)
def test_every_cut_is_exact(name: str, text: str) -> None:
    whole = tokens(text, name)
    for cut in cuts(text, name):
        assert 0 < cut < len(text)
        assert tokens(text[:cut], name) + tokens(text[cut:], name) == whole, (text[:cut], text[cut:])


@pytest.mark.parametrize("name", BASES)
@given(text=texts)
@settings(max_examples=500, deadline=None)
def test_all_cuts_together_are_exact(name: str, text: str) -> None:
    edges = [0, *cuts(text, name), len(text)]
    parts = [tokens(text[low:high], name) for low, high in pairwise(edges)]
    assert list(chain.from_iterable(parts)) == tokens(text, name)


@given(text=texts, start=st.integers(0, 20), size=st.integers(1, 20))
@settings(max_examples=1000, deadline=None)
def test_the_last_cut_is_one_of_the_cuts_and_in_reach(text: str, start: int, size: int) -> None:
    start = min(start, len(text))
    end = min(start + size, max(len(text) - 1, start))
    for name in BASES:
        cut = last_cut(text, start, end, name)
        if cut is not None:
            assert start < cut <= end
            rest = text[start:]
            there = cut - start
            assert tokens(rest[:there], name) + tokens(rest[there:], name) == tokens(rest, name)


def test_prose_and_code_have_cuts_everywhere() -> None:
    for text in ("the quick brown fox " * 40, "if (a[i]==b){ return c.d; }\n" * 30, '{"a":1,"b":[2,3]}' * 40):
        for name in BASES:
            edges = [0, *cuts(text, name), len(text)]
            assert max(high - low for low, high in pairwise(edges)) < 24


def test_a_far_cut_is_found_beyond_the_first_window() -> None:
    text = "ab " + "字" * 5000
    assert last_cut(text, 0, 4000, "o200k_base") == 2


def test_no_cut_is_invented_where_there_is_none() -> None:
    assert last_cut("a" * 5000, 0, 4000, "o200k_base") is None
    assert list(cuts("a\u0301b", "o200k_base")) == []
    assert list(cuts("don't", "cl100k_base")) == []


def test_every_character_python_calls_alphanumeric_is_a_letter_or_number_to_the_tokenizer() -> None:
    # One at a time, before a space: the cut after it must hold.
    for code in range(0, sys.maxunicode + 1, 7):
        text = chr(code) + " x"
        for name in MODERN:
            for cut in cuts(text, name):
                assert tokens(text[:cut], name) + tokens(text[cut:], name) == tokens(text, name), hex(code)


def test_the_whitespace_list_is_unicode_white_space() -> None:
    listed = set(WHITESPACE.replace("\u2000-\u200a", "".join(map(chr, range(0x2000, 0x200B)))))
    python = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()}
    assert listed == python - set("\x1c\x1d\x1e\x1f")


def test_every_encoding_has_a_rule() -> None:
    for name in RECIPES:
        assert list(cuts("a b", name)) == [1]
