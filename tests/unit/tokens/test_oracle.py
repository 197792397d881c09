"""Counting by asking: remembered, bounded, and never wrong about being over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import Uncountable
from proxy.tokens.counts import Counts
from proxy.tokens.encodings import encoding
from proxy.tokens.oracle import OracleCounter


class Upstream:
    """A server that counts with a real tokenizer, and notes how often it was asked."""

    def __init__(self, *, takes_system: bool = True) -> None:
        self._encoding = encoding("cl100k_base")
        self._takes_system = takes_system
        self.asked = 0
        self.tokenized = 0

    def _count(self, text: str) -> int:
        tokens = len(self._encoding.encode(text, disallowed_special=()))
        self.tokenized += tokens
        return tokens

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        self.asked += 1
        if "prompt" in body:
            return int(body.get("add_special_tokens", True)) + self._count(body["prompt"])
        if not self._takes_system and any(message["role"] == "system" for message in body["messages"]):
            raise Uncountable("no system messages here")
        return 3 + sum(4 + self._count(message["content"]) for message in body["messages"])

    async def text_tokens(self, text: str) -> int:
        self.asked += 1
        return self._count(text)


def body(*texts: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}


async def test_what_was_counted_is_not_asked_again() -> None:
    upstream = Upstream()
    counter = OracleCounter(upstream)
    first = await counter.count(body("hello", "world"))
    assert first.exact
    assert await counter.count({**body("hello", "world"), "max_tokens": 5, "stream": True}) == first
    assert upstream.asked == 1


texts = st.lists(
    st.text(max_size=200)
    | st.sampled_from(["word " * 300, "漢字" * 300, "🌍" * 200, " " * 3000, "a" * 2000, "x\n" * 400]),
    min_size=1,
    max_size=4,
)


@given(texts, st.integers(1, 400))
async def test_over_is_said_only_of_what_is_over(parts: list[str], limit: int) -> None:
    upstream = Upstream()
    truth = await upstream.prompt_tokens(body(*parts))
    counted = await OracleCounter(upstream).count(body(*parts), limit)
    if counted.complete:
        assert counted.tokens == truth
    else:
        assert limit < counted.tokens <= truth


@pytest.mark.parametrize("text", ["All work and no play. " * 100_000, " " * 3_000_000, "漢字。" * 300_000])
async def test_a_huge_prompt_is_over_after_a_tenth_more_than_the_limit_and_a_few_questions(text: str) -> None:
    upstream = Upstream()
    counted = await OracleCounter(upstream).count(body(text), 5000)
    assert not counted.complete
    assert upstream.tokenized <= 5500
    assert upstream.asked < 60


async def test_messages_that_a_template_does_not_take_are_counted_by_their_text() -> None:
    counter = OracleCounter(Upstream(takes_system=False))
    request = {
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi there"}]
    }
    counted = await counter.count(request)
    assert not counted.exact
    assert counted.tokens == 4
    assert await counter.weigh(request, [(0, 1), (1, 2)]) == [2, 2]


# ---- plain prompts ----


async def test_a_plain_prompt_is_asked_for_with_what_the_server_adds() -> None:
    upstream = Upstream()
    counter = OracleCounter(upstream)
    assert await counter.count({"prompt": "hi there"}) == Counts(3)
    assert await counter.count({"prompt": ["hi there", "hi there"]}) == Counts(6)
    assert upstream.asked == 1
    assert await counter.count({"prompt": "hi there", "add_special_tokens": False}) == Counts(2)
    assert await counter.count({"prompt": ["hi there", 7, "hi there"]}) == Counts(3 + 1 + 2)
    assert await counter.weigh({"prompt": "hi there"}, []) == []


async def test_token_ids_are_counted_without_a_question() -> None:
    upstream = Upstream()
    assert await OracleCounter(upstream).count({"prompt": [[1, 2], [3]]}) == Counts(3)
    assert upstream.asked == 0


async def test_a_huge_plain_prompt_stops_at_the_limit() -> None:
    upstream = Upstream()
    counted = await OracleCounter(upstream).count({"prompt": "All work and no play. " * 100_000}, 5000)
    assert not counted.complete
    assert upstream.tokenized <= 5500


# ---- clips ----


@pytest.mark.parametrize("text", ["All work and no play. " * 100_000, " " * 300_000, "漢字。" * 30_000])
async def test_a_clip_takes_few_questions_once(text: str) -> None:
    upstream = Upstream()
    counter = OracleCounter(upstream)
    head, tail = await counter.clip(text, 200, 100)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert await upstream.text_tokens(head) <= 200
    assert await upstream.text_tokens(tail) <= 100
    asked = upstream.asked
    assert asked < 45
    assert await counter.clip(text, 200, 100) == (head, tail)
    assert upstream.asked == asked
