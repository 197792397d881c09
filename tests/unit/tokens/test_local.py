"""The counter of OpenAI's models: exact, quick on what it knows, off the event loop with what is large."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.tokens.counts import Counter, Counts
from proxy.tokens.local import NICENESS, CountingPool, LocalCounter, is_small
from proxy.tokens.memo import Memo


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


def counter(pool: CountingPool, model: str = "gpt-4o", encoding: str | None = None) -> LocalCounter:
    return LocalCounter(model, encoding, Memo(10_000), pool)


def chat(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


async def test_a_small_prompt(pool: CountingPool) -> None:
    port: Counter = counter(pool)
    counts = await port.count(chat("Hi"))
    assert counts == Counts(8)
    assert counts.exact


async def test_an_unknown_model_is_doubted_once(pool: CountingPool) -> None:
    counts = await counter(pool, "someone/else").count(chat("Hi", "Hi"))
    assert counts.unsure == ("unknown model, counted like gpt-4o",)
    assert not counts.exact


async def test_a_configured_encoding_wins(pool: CountingPool) -> None:
    text = "Übergrößenträger 你好"
    default = await counter(pool).count(chat(text))
    old = await counter(pool, encoding="r50k_base").count(chat(text))
    assert old.tokens > default.tokens


async def test_an_unknown_encoding_fails_at_start(pool: CountingPool) -> None:
    with pytest.raises(ValueError, match="unknown encoding"):
        counter(pool, encoding="nothing")


async def test_a_large_prompt_counts_the_same_in_the_pool(pool: CountingPool) -> None:
    text = "some words in a row " * 20_000
    one = counter(pool)
    counts = await one.count(chat(text))
    assert counts == Counts(7 + 100_000 + 1)
    assert await one.count(chat(text), limit=200_000) == counts
    assert one.encoded_tokens == 100_001


async def test_a_history_is_encoded_once(pool: CountingPool) -> None:
    one = counter(pool)
    history = [f"message {number} " * 50 for number in range(40)]
    await one.count(chat(*history))
    work = one.encoded_tokens
    await one.count(chat(*history, "and one more"))
    assert one.encoded_tokens == work + 3


async def test_a_count_stops_at_its_limit(pool: CountingPool) -> None:
    one = counter(pool)
    counts = await one.count(chat("many words here " * 1_000_000), limit=5000)
    assert not counts.complete
    assert counts.tokens > 5000
    assert one.encoded_tokens <= 5500


async def test_constants_alone_may_pass_a_limit(pool: CountingPool) -> None:
    one = counter(pool)
    counts = await one.count(chat(*["Hi"] * 50), limit=100)
    assert not counts.complete
    assert counts.tokens > 100
    assert one.encoded_tokens == 0


async def test_a_count_at_the_limit_is_complete(pool: CountingPool) -> None:
    one = counter(pool)
    assert await one.count(chat("Hi"), limit=8) == Counts(8)
    assert (await one.count(chat("Hi"), limit=7)).complete is False


async def test_many_messages_count_the_same_in_the_pool(pool: CountingPool) -> None:
    assert await counter(pool).count(chat(*["Hi"] * 5000)) == Counts(3 + 5 * 5000)


async def test_weights_are_for_each_message_without_the_request(pool: CountingPool) -> None:
    one = counter(pool)
    body = chat("Hi", "Hi there") | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    assert await one.weigh(body) == [5, 6]
    assert await one.weigh(chat(*["Hi"] * 3000)) == [5] * 3000
    assert await one.weigh({"messages": None}) == []


async def test_large_weights_are_weighed_in_the_pool(pool: CountingPool) -> None:
    assert await counter(pool).weigh(chat("some words " * 10_000, "Hi")) == [4 + 20_001, 5]


async def test_the_event_loop_runs_while_a_large_prompt_is_counted(pool: CountingPool) -> None:
    counting = asyncio.ensure_future(counter(pool).count(chat("words and more of them " * 400_000)))
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert (await counting).tokens > 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a niceness")
async def test_the_pools_threads_are_niced_and_the_event_loops_is_not(pool: CountingPool) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    assert await pool.run(niceness) == min(19, before + NICENESS)
    assert niceness() == before


async def test_a_closed_pool_takes_no_work(pool: CountingPool) -> None:
    pool.close()
    with pytest.raises(RuntimeError):
        await pool.run(int)


# ---- plain prompts ----


def prompt(text: Any, **options: Any) -> dict[str, Any]:
    return {"prompt": text, **options}


async def test_a_plain_prompt_is_its_tokens(pool: CountingPool) -> None:
    one = counter(pool, "gpt-3.5-turbo-instruct")
    assert await one.count(prompt("Say this is a test")) == Counts(5)
    assert await one.count(prompt(["Say this is a test", "Hi"])) == Counts(6)
    assert await one.count(prompt([1, 2, 3])) == Counts(3)
    assert await one.count(prompt([[1, 2], [3]])) == Counts(3)
    assert await counter(pool, "davinci-002").count(prompt("Say this is a test")) == Counts(5)
    assert list(await one.weigh(prompt("Hi"))) == []


async def test_doubts_about_a_plain_prompt(pool: CountingPool) -> None:
    one = counter(pool, "gpt-3.5-turbo-instruct")
    assert not (await one.count(prompt("end<|endoftext|>"))).exact
    assert (await one.count(prompt("end<|fim|>"))).exact
    assert not (await one.count(prompt(""))).exact
    assert not (await one.count(prompt("Hi", suffix="there"))).exact
    assert not (await counter(pool, "someone/else").count(prompt("Hi"))).exact
    assert (await counter(pool, "someone/else", "cl100k_base").count(prompt("Hi"))).exact


async def test_a_large_plain_prompt(pool: CountingPool) -> None:
    text = "some words in a row " * 20_000
    one = counter(pool, "gpt-3.5-turbo-instruct")
    assert await one.count(prompt(text)) == Counts(100_001)
    assert await one.count(prompt([7] * 200_000)) == Counts(200_000)
    assert not (await one.count(prompt([7] * 200_000), limit=1000)).complete
    fresh = counter(pool, "gpt-3.5-turbo-instruct")
    assert not (await fresh.count(prompt(text), limit=1000)).complete
    assert fresh.encoded_tokens <= 1100


# ---- clips ----


@pytest.mark.parametrize("repeats", [20, 100_000])
async def test_a_clip_keeps_both_ends_and_is_remembered(pool: CountingPool, repeats: int) -> None:
    text = "one two three four five. " * repeats
    one = counter(pool)
    clipped = await one.clip(text, 8, 5)
    assert clipped == ("one two three four five. one two", " three four five. ")
    work = one.encoded_tokens
    assert await one.clip(text, 8, 5) == clipped
    assert one.encoded_tokens == work
    assert work < 1000


async def test_a_long_clip_is_searched_in_the_pool(pool: CountingPool) -> None:
    text = "many words here " * 100_000
    one = counter(pool)
    head, tail = await one.clip(text, 20_000, 10_000)
    assert (await one.count(chat(head))).tokens - 7 <= 20_000
    assert len(head) > 1.9 * len(tail) > 100_000


async def test_nothing_to_clip(pool: CountingPool) -> None:
    one = counter(pool)
    assert await one.clip("Hi there", 10, 10) == ("Hi there", "")
    assert await one.clip("", 10, 10) == ("", "")
    assert await one.clip("Hi there", 0, 0) == ("", "")


def test_what_is_small() -> None:
    assert is_small(chat("Hi"))
    assert not is_small(chat("x" * 300_000))
    assert not is_small(chat(*["Hi"] * 1001))
    assert not is_small({"messages": [], "tools": [[]] * 20_000})
