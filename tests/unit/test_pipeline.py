"""The tables tell the truth: an order that cannot work is refused, and stages read and set what is written."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy import app
from proxy.config import Telemetry
from proxy.config_load import load
from proxy.errors import ProxyError
from proxy.exchange import Exchange
from proxy.pipeline import Pipeline, Stage, stage
from proxy.runtime import Runtime
from proxy.telemetry.metrics import Metrics


async def nothing(_: Any) -> None:
    pass


class Item:
    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self.ran: list[str] = []


# --- order ---


def test_an_order_in_which_a_need_is_not_met_is_refused() -> None:
    first = stage("first", nothing, needs="a", gives="b")
    second = stage("second", nothing, needs="a b", gives="c")
    assert Pipeline(first, second, inputs="a").stages == (first, second)
    with pytest.raises(ValueError, match=r"stage 'second' needs \['b'\], which nothing before it gives"):
        Pipeline(second, first, inputs="a")
    with pytest.raises(ValueError, match=r"stage 'first' needs \['a'\]"):
        Pipeline(first, second, inputs="")


def test_nothing_is_given_twice() -> None:
    first = stage("first", nothing, needs="a", gives="b")
    again = stage("again", nothing, needs="b", gives="b")
    over = stage("over", nothing, needs="b", gives="a")
    with pytest.raises(ValueError, match=r"stage 'again' gives \['b'\] again"):
        Pipeline(first, again, inputs="a")
    with pytest.raises(ValueError, match=r"stage 'over' gives \['a'\] again"):
        Pipeline(first, over, inputs="a")


async def test_stages_run_in_order_and_are_timed_until_one_refuses() -> None:
    def step(name: str, *, refuse: bool = False) -> Stage[Any]:
        async def run(it: Item) -> None:
            it.ran.append(name)
            if refuse:
                raise ProxyError("no")

        return stage(name, run, needs="")

    item = Item()
    item.timings["one"] = 100.0  # an earlier attempt's
    table = Pipeline(step("one"), step("two", refuse=True), step("three"), inputs="")
    with pytest.raises(ProxyError):
        await table.run(item)
    assert item.ran == ["one", "two"]
    assert set(item.timings) == {"one", "two"}
    assert item.timings["one"] >= 100.0


async def test_a_field_is_not_there_before_its_stage() -> None:
    exchange = Exchange("r", "/v1/chat/completions", (), "", 0.0)
    for name in ("prompt", "caller", "candidates", "limit", "outcome"):
        with pytest.raises(AttributeError):
            getattr(exchange, name)


# --- what stages really read and set ---


class Spy:
    """Stands before an Exchange or Attempt and writes down what is read and set."""

    def __init__(self, real: Any, reads: set[str], sets: set[str]) -> None:
        object.__setattr__(self, "_spied", (real, reads, sets))

    def __getattr__(self, name: str) -> Any:
        real, reads, sets = object.__getattribute__(self, "_spied")
        if name not in sets:
            reads.add(name)
        return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        real, _, sets = object.__getattribute__(self, "_spied")
        sets.add(name)
        setattr(real, name, value)


class Seen:
    """Over many requests: what each stage read (but for what it had set itself), and what it set."""

    def __init__(self) -> None:
        self.reads: dict[str, set[str]] = defaultdict(set)
        self.sets: dict[str, set[str]] = defaultdict(set)
        self.refused_by: set[str] = set()

    async def run(self, table: Pipeline[Any], it: Any) -> bool:
        for each in table.stages:
            sets: set[str] = set()
            try:
                await each.run(Spy(it, self.reads[each.name], sets))
            except ProxyError:
                self.refused_by.add(each.name)
                return False
            finally:
                self.sets[each.name] |= sets
        return True


CONFIG = """
[fuse]
max_context_tokens = 400
[fuse.allow]
networks = ["10.0.0.0/8"]
[context]
budget_tokens = 120
[cap]
default_tokens = 50
max_tokens = 100

[[backends]]
name = "a"
kind = "openai"
[[backends]]
name = "b"
kind = "openai"

[[backends]]
name = "own"
kind = "openai"
auth = "none"

[[models]]
name = "keeps"
targets = [{ backend = "a", model = "gpt-4o" }]
[[models]]
name = "trims"
targets = [{ backend = "a", model = "gpt-4o" }, { backend = "b", model = "gpt-4o", weight = 2 }]
window = 200
context = { strategy = "trim" }
fallbacks = ["keeps"]
[[models]]
name = "remembers"
targets = [{ backend = "own", model = "gpt-4o" }]
window = 200
context = { strategy = "summarize", summary = { model = "keeps-own" } }
[[models]]
name = "keeps-own"
targets = [{ backend = "own", model = "gpt-4o" }]
[[models]]
name = "thinks"
targets = [{ backend = "a", model = "o3" }]
window = 100
fuse = { mode = "observe" }
"""


@asynccontextmanager
async def opened() -> AsyncIterator[Runtime]:
    parts = app.Parts(Metrics(Telemetry()))
    runtime = app.open_runtime(load(CONFIG, {}, embedded=False), parts, {})
    try:
        yield runtime
    finally:
        await app.close_runtime(runtime)
        parts.close()


def turns(number: int) -> list[dict[str, str]]:
    one = [
        {"role": "user", "content": "why is that " * 10},
        {"role": "assistant", "content": "because " * 10},
    ]
    return [{"role": "system", "content": "Be brief."}, *one * number, {"role": "user", "content": "And?"}]


REQUESTS: list[tuple[dict[str, Any], list[tuple[str, str]], str]] = [
    ({"model": "keeps", "messages": turns(1)}, [], ""),
    ({"model": "keeps", "messages": turns(1), "max_tokens": 1000, "stream": True}, [], "10.1.2.3"),
    ({"model": "keeps", "messages": turns(40)}, [], "127.0.0.1"),
    ({"model": "keeps", "messages": turns(40)}, [("x-chatfuse-context", "trim")], "10.1.2.3"),
    ({"model": "trims", "messages": turns(1)}, [("authorization", "Bearer x")], ""),
    ({"model": "trims", "messages": turns(5), "max_tokens": 1}, [], ""),
    ({"model": "trims", "messages": [{"role": "user", "content": "long " * 150}]}, [], ""),
    ({"model": "thinks", "messages": turns(1), "max_completion_tokens": 5}, [], ""),
    ({"model": "thinks", "messages": turns(40)}, [], ""),
    ({"model": "thinks", "messages": turns(4), "max_tokens": 5}, [], ""),
    ({"model": "remembers", "messages": turns(5)}, [("authorization", "Bearer x")], ""),
    ({"model": "nobody's", "messages": turns(1)}, [], ""),
    ({"model": "keeps", "messages": "none"}, [], ""),
]


async def test_the_tables_say_what_stages_read_and_set() -> None:
    seen = Seen()
    async with opened() as runtime:
        for fields, headers, peer in REQUESTS:
            body = json.dumps(fields).encode()
            exchange = Exchange("r", "/v1/chat/completions?x=1", headers, peer, 0.0)
            exchange.body = body
            if await seen.run(runtime.admission, exchange):
                for model in exchange.candidates:
                    await seen.run(runtime.fitting, exchange.attempt(model))
        stages: list[Stage[Any]] = [*runtime.admission.stages, *runtime.fitting.stages]
    # Every kind of refusal has happened, so every branch was taken.
    assert seen.refused_by == {"parse", "identify", "fuse", "shape", "cap"}
    assert {each.name: seen.reads[each.name] for each in stages} == {each.name: each.needs for each in stages}
    assert {each.name: seen.sets[each.name] for each in stages} == {each.name: each.gives for each in stages}


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "keeps", "prompt": "why"}),
    ("/v1/completions", {"model": "trims", "prompt": ["why", "and why"], "max_tokens": 5}),
    ("/v1/responses", {"model": "trims", "input": turns(5)}),
    ("/v1/messages", {"model": "trims", "messages": turns(5)[1:], "system": "Be brief.", "max_tokens": 5}),
]


@pytest.mark.parametrize(("path", "fields"), OTHERS)
async def test_prompts_of_every_dialect_go_through_the_same_tables(path: str, fields: dict[str, Any]) -> None:
    async with opened() as runtime:
        exchange = Exchange("r", path, (), "", 0.0)
        exchange.body = json.dumps(fields).encode()
        await runtime.admission.run(exchange)
        attempt = exchange.attempt(exchange.candidates[0])
        await runtime.fitting.run(attempt)
        assert exchange.prompt.fields == fields
        assert attempt.shaped.counts.tokens <= 400
        assert (attempt.shaped.cut is not None) == (fields["model"] == "trims" and "prompt" not in fields)


async def test_stages_leave_the_body_and_its_parsed_view_alone() -> None:
    async with opened() as runtime:
        for fields, headers, peer in REQUESTS:
            body = json.dumps(fields).encode()
            exchange = Exchange("r", "/v1/chat/completions", headers, peer, 0.0)
            exchange.body = body
            try:
                await runtime.admission.run(exchange)
                for model in exchange.candidates:
                    await runtime.fitting.run(exchange.attempt(model))
            except ProxyError:
                pass
            assert exchange.body == body
            if hasattr(exchange, "prompt"):
                assert exchange.prompt.raw == body
                assert exchange.prompt.fields == fields
