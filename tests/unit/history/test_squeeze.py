"""What is said shorter: notes in place of base64, both ends of what is long, system messages once."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.history.squeeze import message_texts, repeats, shortened, without_base64
from proxy.history.turns import layout
from tests.unit.history.conversations import assistant, calls, result, system, user


class Words:
    """Every word is a token, and so is every line break."""

    async def tokens(self, text: str) -> int:
        return len(text.split())

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        words = text.split(" ")
        if len(words) <= head_tokens:
            return text, ""
        tail = " ".join(words[len(words) - tail_tokens :]) if tail_tokens else ""
        return " ".join(words[:head_tokens]), tail


# --- long texts ---


async def test_both_ends_stay_with_a_note_between() -> None:
    text = " ".join(str(n) for n in range(2000))
    head, note, tail = (await shortened(text, 124, Words())).split("\n")
    assert head.split() == [str(n) for n in range(50)]
    assert tail.split() == [str(n) for n in range(1950, 2000)]
    assert note == "[... 1,900 tokens left out ...]"


@pytest.mark.parametrize("size", [0, 1, 99, 100])
async def test_what_is_short_enough_stays_as_it_is(size: int) -> None:
    text = " ".join(["wordy"] * size)
    assert await shortened(text, 100, Words()) == text


@given(st.integers(1, 3000), st.integers(64, 500))
async def test_never_more_than_was_allowed_and_never_twice(size: int, limit: int) -> None:
    once = await shortened(" ".join(["wordy"] * size), limit, Words())
    assert len(once.split()) <= limit
    assert await shortened(once, limit, Words()) == once


# --- base64 ---


def blob(size: int, *, url_safe: bool = False) -> str:
    data = random.Random(size).randbytes(size)
    return (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()


@pytest.mark.parametrize("url_safe", [False, True])
def test_base64_in_one_piece_becomes_a_note(url_safe: bool) -> None:
    assert without_base64(f"see {blob(600, url_safe=url_safe)}, ok") == (
        "see [base64 data left out: 800 characters], ok"
    )


def test_base64_in_lines_becomes_one_note() -> None:
    lines = base64.encodebytes(random.Random(1).randbytes(3000)).decode()
    text = f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----"
    out = without_base64(text)
    assert out.startswith("-----BEGIN CERTIFICATE-----\n[base64 data left out: ")
    assert out.endswith("-----END CERTIFICATE-----")
    assert len(out) < 120


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n" * 500,
        blob(300),
        "a" * 5000,
        "ACGT" * 1000,
        "0123456789abcdef" * 200,
        "-" * 3000,
        "/usr/local/lib/python3.11/site-packages/" * 3 + " and more words" * 100,
        "\n".join(["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"] * 50),
        "The quick brown fox. " * 400,
        '{"key": [1, 2, 3], "other": "Value"},' * 300,
    ],
)
def test_what_is_no_base64_stays_the_very_text(text: str) -> None:
    assert without_base64(text) == text


@given(st.text(max_size=300), st.integers(0, 900))
def test_a_note_is_not_squeezed_again(around: str, size: int) -> None:
    once = without_base64(around + blob(size) + around)
    assert without_base64(once) == once


def test_hostile_texts_take_no_time() -> None:
    for text in ("data:" * 200_000, "data:a/" * 100_000, ("A" * 76 + "\n") * 20_000, "A+/" * 400_000):
        without_base64(text)


# --- repeats ---


def dropped(messages: list[dict[str, Any]], kept: list[int] | None = None) -> list[int]:
    return sorted(repeats(messages, layout(messages), kept or list(range(len(messages)))))


NOTE = {"role": "system", "content": "The user is in Lisbon."}


def test_the_first_stays_and_the_others_go() -> None:
    turn = [user(), assistant()]
    assert dropped([system(), system(), *turn, system(), *turn, NOTE, *turn, NOTE, user()]) == [1, 4, 10]


def test_the_first_is_the_first_that_is_kept() -> None:
    turn = [user(), assistant()]
    messages = [system(), *turn, NOTE, *turn, NOTE, *turn, NOTE, user()]
    assert dropped(messages) == [6, 9]
    assert dropped(messages, [0, *range(4, len(messages))]) == [9]


def test_roles_alternate_as_before() -> None:
    assert dropped([system(), user(), system(), user()]) == []
    assert dropped([system(), user(), system(), assistant(), user()]) == [2]
    assert dropped([system(), user(), assistant(), system(), assistant(), user()]) == []
    # The reply comes behind the last one.
    assert dropped([system(), user(), system()]) == [2]
    assert dropped([system(), user(), assistant(), system()]) == []


def test_what_results_hang_on_stays() -> None:
    assert dropped([system(), user(), calls("a"), result("a"), system(), result("a"), user()]) == []


# --- texts of messages ---


def test_texts_are_found_in_strings_and_parts() -> None:
    items = [
        "bare",
        user("one"),
        user([{"type": "text", "text": "two"}, {"type": "image_url"}]),
        assistant("x"),
    ]
    found = message_texts(items, ("user",))
    assert [(place.item, place.path, text) for place, text in found] == [
        (0, (), "bare"),
        (1, ("content",), "one"),
        (2, ("content", 0, "text"), "two"),
    ]
