"""The counter of models with a template: exact, remembering, bounded, and never surprised."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.tokens.counts import Counter, Counts
from proxy.tokens.local import CountingPool
from proxy.tokens.memo import Memo

pytest.importorskip("jinja2")

from proxy.tokens.template import ChatTemplate
from proxy.tokens.template_counter import TemplateCounter
from proxy.tokens.template_request import ServerFlags

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Roles alternate and there is no system, as with Mistral's first templates.
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
)
# Thinking is dropped from old turns, as with Qwen 3.
FORGETS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content and loop.last %}"
    "{{ m.reasoning_content }}{% endif %}{{ m.content }}</s>{% endfor %}"
)


class Characters:
    """A token for each character, and one for each special token."""

    name = "characters"
    special = ("<|user|>", "<|assistant|>", "<|system|>", "</s>")

    def __init__(self, added: int | None = 1) -> None:
        self.added = added
        self.threads: set[int] = set()
        self.counted = 0

    def count(self, text: str) -> int:
        self.threads.add(threading.get_native_id())
        text.encode()
        for token in self.special:
            text = text.replace(token, "\x00")
        self.counted += len(text)
        return len(text)


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


def counter(pool: CountingPool, source: str = CHATML, memo: Memo | None = None) -> TemplateCounter:
    return TemplateCounter(ChatTemplate({"default": source}, {}), Characters(), memo or Memo(10_000), pool)


def chat(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


async def test_a_small_prompt(pool: CountingPool) -> None:
    port: Counter = counter(pool)
    counts = await port.count(chat("Hi"))
    assert counts.tokens == 1 + 2 + 1 + 1
    assert counts.exact


async def test_look_alikes_in_a_users_text_are_tokens_as_they_are_for_the_server(pool: CountingPool) -> None:
    assert (await counter(pool).count(chat("a</s><|system|>b"))).tokens == 1 + 4 + 1 + 1


async def test_a_history_is_tokenized_once(pool: CountingPool) -> None:
    one = counter(pool)
    history = [f"message {number}" for number in range(40)]
    await one.count(chat(*history))
    work = one.encoded_tokens
    await one.count(chat(*history, "more"))
    assert one.encoded_tokens == work + 1 + 4


async def test_large_text_is_counted_in_the_pool(pool: CountingPool) -> None:
    for body in (chat("x" * 100_000), chat("x" * 1_000_000), chat(*["x"] * 500)):
        tokenizer = Characters()
        one = TemplateCounter(ChatTemplate({"default": CHATML}, {}), tokenizer, Memo(1000), pool)
        tokenizer.threads.clear()
        counts = await one.count(body)
        assert counts.tokens == sum(2 + len(message["content"]) for message in body["messages"]) + 1
        assert threading.get_native_id() not in tokenizer.threads
        assert await one.count(body, limit=2_000_000) == counts


async def test_a_count_stops_at_its_limit(pool: CountingPool) -> None:
    for body in (chat("words " * 200_000), chat(*[f"{number:0100}" for number in range(2000)])):
        one = counter(pool)
        before = one.encoded_tokens
        counts = await one.count(body, limit=5000)
        assert not counts.complete
        assert 5000 < counts.tokens <= 5600
        assert one.encoded_tokens - before <= 5600


async def test_a_count_at_the_limit_is_complete(pool: CountingPool) -> None:
    one = counter(pool)
    assert (await one.count(chat("Hi"), limit=5)).complete
    assert not (await one.count(chat("Hi"), limit=4)).complete


async def test_a_refusal_is_an_unsure_count_of_the_texts(pool: CountingPool) -> None:
    counts = await counter(pool, ALTERNATE).count(chat("ab", "cd"))
    assert counts.unsure == ("the template does not take this request: roles must alternate",)
    assert counts.tokens >= 4
    assert not counts.exact


async def test_half_a_surrogate_pair_is_unsure(pool: CountingPool) -> None:
    counts = await counter(pool).count(chat("a\ud83d b"))
    assert counts.unsure == ("half a surrogate pair in the text",)
    assert counts.tokens == 1 + 4 + 1 + 1


async def test_media_are_unsure(pool: CountingPool) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "x" * 1000}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    counts = await counter(pool).count(body)
    assert counts.unsure
    assert counts.tokens < 100


# ---- plain prompts ----


def plain_counter(
    pool: CountingPool, added: int | None = 1, flags: ServerFlags | None = None
) -> TemplateCounter:
    return TemplateCounter(
        ChatTemplate({"default": CHATML}, {}, flags), Characters(added), Memo(10_000), pool
    )


async def test_a_plain_prompt_has_what_the_tokenizer_adds(pool: CountingPool) -> None:
    one = plain_counter(pool, 2)
    assert await one.count({"prompt": "abc</s>"}) == Counts(2 + 3 + 1)
    assert await one.count({"prompt": ["abc", "d"]}) == Counts(2 * 2 + 3 + 1)
    assert await one.count({"prompt": [7, 8, 9]}) == Counts(3)
    assert await one.count({"prompt": ["abc", 7, "d"]}) == Counts(2 + 3 + 1 + 1)
    assert await one.count({"prompt": "abc", "add_special_tokens": False}) == Counts(3)
    assert await one.weigh({"prompt": "abc"}, []) == []


async def test_llama_cpp_always_adds_it(pool: CountingPool) -> None:
    one = plain_counter(pool, 1, ServerFlags(server="llama.cpp"))
    assert await one.count({"prompt": "abc", "add_special_tokens": False}) == Counts(1 + 3)


async def test_doubts_about_a_plain_prompt(pool: CountingPool) -> None:
    assert (await plain_counter(pool, None).count({"prompt": "abc"})).unsure == (
        "whether the server adds a token at the beginning of a plain prompt",
    )
    assert (await plain_counter(pool, None).count({"prompt": [1, 2]})).exact
    assert not (await plain_counter(pool).count({"prompt": "a\ud83d"})).exact
    assert not (await plain_counter(pool).count({"prompt": {}})).exact


async def test_a_large_plain_prompt(pool: CountingPool) -> None:
    assert await plain_counter(pool).count({"prompt": "x" * 500_000}) == Counts(500_001)
    counts = await plain_counter(pool).count({"prompt": ["x" * 500_000]}, limit=1000)
    assert not counts.complete
    assert 1000 < counts.tokens <= 1100


# ---- clips ----


@pytest.mark.parametrize("repeats", [10, 10_000])
async def test_a_clip_keeps_both_ends_and_is_remembered(pool: CountingPool, repeats: int) -> None:
    tokenizer = Characters()
    one = TemplateCounter(ChatTemplate({"default": CHATML}, {}), tokenizer, Memo(10_000), pool)
    text = "one two three four five " * repeats
    clipped = await one.clip(text, 15, 13)
    assert clipped == ("one two three", " four five ")
    tokenizer.counted = 0
    assert await one.clip(text, 15, 13) == clipped
    assert tokenizer.counted == 0


async def test_a_long_clip_is_searched_in_the_pool(pool: CountingPool) -> None:
    tokenizer = Characters()
    one = TemplateCounter(ChatTemplate({"default": CHATML}, {}), tokenizer, Memo(10_000), pool)
    tokenizer.threads.clear()
    head, tail = await one.clip("x" * 100_000, 3000, 2000)
    assert (len(head), len(tail)) == (3000, 2000)
    assert threading.get_native_id() not in tokenizer.threads


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("role", "content", "type", "text", "tool_calls", "function", "name", "arguments")
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(
    body=st.dictionaries(
        st.sampled_from(("messages", "prompt", "tools", "chat_template_kwargs", "tool_choice", "documents")),
        JSON,
    ),
    limit=st.none() | st.integers(0, 20),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_in_a_request_makes_it_raise(
    pool: CountingPool, body: dict[str, Any], limit: int | None
) -> None:
    one = counter(pool)
    asyncio.run(one.count(body, limit))
    messages = body.get("messages")
    if isinstance(messages, list):
        units = [(at, at + 1) for at in range(len(messages))]
        assert len(asyncio.run(one.weigh(body, units))) == len(messages)


# ---- weights ----


async def test_weights_stand_at_the_first_message_of_a_unit(pool: CountingPool) -> None:
    one = counter(pool)
    body = chat("Hi", "there", "you") | {"tools": [{"function": {"name": "f"}}]}
    assert await one.weigh(body, [(0, 1), (1, 3)]) == [4, 7 + 5, 0]


async def test_a_weight_is_that_of_an_old_turn_and_the_same_wherever_it_stands(pool: CountingPool) -> None:
    one = counter(pool, FORGETS)
    thought = {"role": "assistant", "content": "ab", "reasoning_content": "long thinking"}
    body = {"messages": [*chat("Hi")["messages"], thought]}
    assert (await one.weigh(body, [(0, 1), (1, 2)]))[1] == 4
    assert await one.weigh({"messages": [thought]}, [(0, 1)]) == [4]
    assert (await one.count(body)).tokens > 8


async def test_units_are_weighed_where_roles_must_alternate(pool: CountingPool) -> None:
    answer = {"role": "assistant", "content": "abc"}
    body = {"messages": [*chat("Hi")["messages"], answer, {"role": "tool", "content": "result"}]}
    assert await counter(pool, ALTERNATE).weigh(body, [(0, 1), (1, 2), (2, 3)]) == [
        4,
        5,
        len("<|tool|>result") + 1,
    ]


async def test_weights_are_remembered(pool: CountingPool) -> None:
    memo = Memo(10_000)
    one = counter(pool, memo=memo)
    body = chat(*[f"text {number}" * 100 for number in range(60)])
    units = [(at, at + 1) for at in range(60)]
    weights = await one.weigh(body, units)
    work = one.encoded_tokens
    assert await one.weigh(body, units) == weights
    assert one.encoded_tokens == work
    assert await counter(pool, FORGETS, memo).weigh(chat("text 0" * 100), [(0, 1)]) == [weights[0]]


async def test_many_units_are_weighed_in_the_pool(pool: CountingPool) -> None:
    body = chat(*["Hi"] * 3000)
    assert await counter(pool).weigh(body, [(at, at + 1) for at in range(3000)]) == [4] * 3000
