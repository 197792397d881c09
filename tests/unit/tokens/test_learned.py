from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.tokens.counts import Counts
from proxy.tokens.learned import LearnedCounter
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo
from proxy.tokens.self_check import CHECKS, Checked, check
from proxy.tokens.truth import Truth

BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello there"}]}


class _Server:
    """Counts like the local counter, but for `adds`; what it is asked is kept."""

    scope = ""

    def __init__(self, local: LocalCounter, adds: int = 0) -> None:
        self._local = local
        self._adds = adds
        self.asked: list[Mapping[str, Any]] = []

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        self.asked.append(body)
        return (await self._local.count(body)).tokens + self._adds

    async def text_tokens(self, text: str) -> int:
        return len(text)


def local() -> LocalCounter:
    return LocalCounter("gpt-4o", None, Memo(1000), CountingPool())


async def test_what_the_server_adds_is_added() -> None:
    truth, plain = Truth(), local()
    counter = LearnedCounter(plain, truth)
    before = await counter.count(BODY)
    truth.note(BODY, Counts(before.tokens, unsure=("x",)), before.tokens + 7)
    assert (await counter.count(BODY)).tokens == before.tokens + 7
    assert (await plain.count(BODY)).tokens == before.tokens


async def test_what_is_added_to_a_chat_is_not_added_to_a_plain_prompt() -> None:
    truth, plain = Truth(), local()
    truth.note(BODY, Counts(10, unsure=("x",)), 17)
    body = {"prompt": "hello there"}
    assert await LearnedCounter(plain, truth).count(body) == await plain.count(body)


async def test_the_grid_is_laid_without_what_was_learned() -> None:
    truth, plain = Truth(), local()
    counter = LearnedCounter(plain, truth)
    truth.note(BODY, Counts(10, unsure=("x",)), 17)
    assert list(await counter.weigh(BODY, [(0, 1)])) == list(await plain.weigh(BODY, [(0, 1)]))


async def test_a_counter_that_is_not_trusted_gives_way_to_the_server() -> None:
    class Oracle:
        async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
            return Counts(42)

        async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
            raise AssertionError("never asked")

        async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
            raise AssertionError("never asked")

    truth = Truth()
    counter = LearnedCounter(local(), truth, Oracle())
    assert (await counter.count(BODY)).tokens != 42
    truth.distrusted = True
    assert (await counter.count(BODY)).tokens == 42


async def test_a_counter_that_counts_like_its_server_passes_every_check() -> None:
    counter = local()
    server = _Server(counter)
    result = await check(counter, server)
    exact = [body for body in CHECKS if (await counter.count(body)).exact]
    assert result == Checked(made=len(exact))
    assert len(exact) >= 3
    assert server.asked == exact


async def test_a_counter_that_does_not_is_found_out_with_both_numbers() -> None:
    counter = local()
    result = await check(counter, _Server(counter, adds=5))
    assert result.wrong == result.made > 0
    assert result.theirs == result.ours + 5
