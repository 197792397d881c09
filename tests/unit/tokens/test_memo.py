"""A memo remembers what is used, forgets the rest, and never holds the text."""

import gc
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.memo import Memo, blake, hash_is_secret


def test_what_was_put_is_found_under_its_encoding_only() -> None:
    memo = Memo(10)
    memo.put("o200k_base", "hello", 1)
    assert memo.get("o200k_base", "hello") == 1
    assert memo.get("cl100k_base", "hello") is None
    assert memo.get("o200k_base", "hello ") is None


@given(st.lists(st.text(max_size=4), max_size=200), st.integers(2, 20))
def test_a_memo_is_bounded_and_never_wrong(texts: list[str], entries: int) -> None:
    memo = Memo(entries)
    for text in texts:
        assert memo.get("x", text) in (None, len(text))
        memo.put("x", text, len(text))
        assert memo.get("x", text) == len(text)
        assert len(memo) <= entries


def test_what_is_used_stays() -> None:
    memo = Memo(20)
    memo.put("x", "history", 7)
    for number in range(1000):
        memo.put("x", str(number), 1)
        assert memo.get("x", "history") == 7
    assert memo.get("x", "3") is None


def test_the_text_is_not_kept() -> None:
    memo = Memo(10)
    memo.put("x", "s3cret text", 3)
    held = [memo._young, memo._old]
    assert "s3cret" not in repr(held)
    assert not any(isinstance(item, str) and "s3cret" in item for item in gc.get_referents(*held))


def test_blake_takes_any_text_and_depends_on_its_key() -> None:
    assert blake(b"a" * 32)("x") != blake(b"b" * 32)("x")
    memo = Memo(10, blake(b"k" * 32))
    memo.put("x", "\ud83d lone", 4)
    assert memo.get("x", "\ud83d lone") == 4


def test_a_memo_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="room"):
        Memo(1)


@pytest.mark.parametrize(("seed", "secret"), [(None, True), ("random", True), ("0", False), ("17", False)])
def test_a_fixed_hash_seed_is_noticed(seed: str | None, secret: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    script = "from proxy.tokens.memo import *; print(hash_is_secret(), process_digest() is hash)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(secret), str(secret)]


def test_this_process_has_one_answer() -> None:
    assert hash_is_secret() is hash_is_secret()
