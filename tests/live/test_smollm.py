"""The main job on the real engine: no key, no config, no GPU, and a real answer; counted, fitted, capped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import aiohttp
import openai
import psutil
import pytest

from backends.engine_llama import find_weights
from proxy.engines import EngineFailed
from tests import proxy_fixture
from tests.conftest import StartProxy
from tests.live.conftest import ADMIN
from tests.proxy_fixture import Proxy
from tests.wire.requests import conversation

BOUND_S = 120.0
QUESTION = [{"role": "user", "content": "Name the capital city of France."}]


async def post(proxy: Proxy, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", json={"model": "smollm2", **body}) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()


async def test_a_question_gets_a_real_answer_and_its_tokens_are_counted_exactly(smollm: Proxy) -> None:
    status, headers, body = await post(smollm, {"messages": QUESTION, "temperature": 0})
    assert status == 200
    assert "Paris" in body["choices"][0]["message"]["content"]
    assert int(headers["x-chatfuse-tokens-in"]) == body["usage"]["prompt_tokens"]
    metrics = await smollm.metrics()
    assert metrics['chatfuse_count_error_tokens_bucket{le="0.0",model="smollm2"}'] == 1
    assert metrics['chatfuse_count_error_tokens_bucket{le="-1.0",model="smollm2"}'] == 0


async def test_the_official_sdk_streams_from_the_real_model(smollm: Proxy) -> None:
    async with openai.AsyncOpenAI(base_url=smollm.base_url, api_key="unused", max_retries=0) as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["smollm2"]
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Name the capital city of France."}],
            temperature=0,
            stream=True,
            max_tokens=20,
        )
        chunks = [chunk async for chunk in stream]
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert all(chunk.choices for chunk in chunks), "the usage event was ours, not the client's"
    assert (await smollm.metrics())['chatfuse_tokens_total{kind="completion",model="smollm2"}'] > 0


def conversations() -> list[dict[str, Any]]:
    seeded = random.Random(7)
    words = [
        "sky",
        "Grüße",
        "漢字",
        "🌍",
        "def f(x):",
        "<|im_end|>",
        "<|endoftext|>",
        "\n\n",
        "  ",
        "1234",
        "it's",
    ]

    def text() -> str:
        return " ".join(seeded.choices(words, k=seeded.randint(0, 12)))

    found: list[dict[str, Any]] = []
    for _ in range(30):
        messages: list[dict[str, Any]] = []
        if seeded.random() < 0.6:
            messages.append({"role": "system", "content": text()})
        for _ in range(seeded.randint(0, 4)):
            messages.append({"role": "user", "content": text()})
            messages.append({"role": "assistant", "content": text()})
        messages.append({"role": "user", "content": text()})
        if seeded.random() < 0.3:
            messages[-1]["content"] = [{"type": "text", "text": text()}, {"type": "text", "text": text()}]
        found.append({"messages": messages, "max_tokens": 1})
    return found


async def test_the_count_equals_the_reported_usage_in_every_conversation(smollm: Proxy) -> None:
    for body in conversations():
        status, headers, answer = await post(smollm, body)
        assert status == 200, answer
        assert int(headers["x-chatfuse-tokens-in"]) == answer["usage"]["prompt_tokens"], body


SMALL = """
[admin]
port = 0
[[backends]]
name = "embedded"
kind = "embedded"
window_tokens = 1024
[[models]]
name = "smollm2"
targets = [{ backend = "embedded" }]
context = { strategy = "trim" }
"""


async def test_a_conversation_longer_than_the_window_is_answered_and_the_cut_holds(
    start_proxy: StartProxy,
) -> None:
    proxy = await start_proxy(SMALL)
    cuts = []
    for turns in range(12, 20):
        body = conversation(turns, words=30, max_tokens=1)
        status, headers, answer = await post(proxy, {**body, "model": "smollm2"})
        assert status == 200, answer
        sent = int(headers["x-chatfuse-tokens-in"])
        assert sent == answer["usage"]["prompt_tokens"]
        assert sent <= 768 < int(headers["x-chatfuse-tokens-original"])
        cuts.append(int(headers["x-chatfuse-dropped-turns"]))
    assert len(set(cuts)) <= 4
    assert (await proxy.metrics())['chatfuse_cuts_total{model="smollm2"}'] == len(cuts)


async def test_asking_for_more_than_the_window_holds_is_capped_by_the_room(smollm: Proxy) -> None:
    status, headers, _ = await post(smollm, {"messages": QUESTION, "max_tokens": 100_000, "stop": ["."]})
    assert status == 200
    assert int(headers["x-chatfuse-max-tokens"]) == 4096 - int(headers["x-chatfuse-tokens-in"])


async def test_what_the_template_does_not_take_is_the_engines_to_refuse(smollm: Proxy) -> None:
    status, _, body = await post(smollm, {"messages": [{"role": "tool", "content": 5}]})
    assert status == 400
    assert "content" in body["error"]["message"]


async def slots_busy(engine: psutil.Process, proxy: Proxy) -> bool:
    """Whether the engine still works: its CPU time grows."""
    before = sum(engine.cpu_times()[:2])
    await asyncio.sleep(0.5)
    return bool(sum(engine.cpu_times()[:2]) - before > 0.2)


def engine_process() -> psutil.Process:
    return next(
        child
        for child in psutil.Process().children(recursive=True)
        if "backends.llama_child" in child.cmdline()
    )


async def test_a_client_that_leaves_stops_the_generation(smollm: Proxy) -> None:
    engine = engine_process()
    async with aiohttp.ClientSession() as session:
        answer = await session.post(
            f"{smollm.base_url}/chat/completions",
            json={
                "model": "smollm2",
                "stream": True,
                "messages": [{"role": "user", "content": "Write a very long story."}],
                "ignore_eos": True,
                "max_tokens": 3000,
            },
        )
        await answer.content.readany()
        assert await slots_busy(engine, smollm)
        answer.close()
    async with asyncio.timeout(BOUND_S):
        while await slots_busy(engine, smollm):
            pass


async def test_a_killed_engine_is_started_again_and_the_proxy_says_so_meanwhile(smollm: Proxy) -> None:
    engine = engine_process()
    os.kill(engine.pid, signal.SIGKILL)
    status, _, body = await post(smollm, {"messages": QUESTION, "max_tokens": 1})
    assert status in (200, 502)
    if status == 502:
        assert body["error"]["code"] == "upstream_error"
    async with asyncio.timeout(BOUND_S):
        while (await post(smollm, {"messages": QUESTION, "max_tokens": 1}))[0] != 200:
            await asyncio.sleep(0.1)


async def test_workers_share_one_engine(start_proxy: StartProxy) -> None:
    proxy = await start_proxy(ADMIN + "[server]\nworkers = 2", embedded=True)
    engines = [
        child
        for child in psutil.Process().children(recursive=True)
        if "backends.llama_child" in child.cmdline()
    ]
    assert len(engines) == 1
    answers = await asyncio.gather(*(post(proxy, {"messages": QUESTION, "max_tokens": 1}) for _ in range(8)))
    assert [status for status, _, _ in answers] == [200] * 8
    await proxy.stop()
    assert not engines[0].is_running()


async def test_the_fuse_refuses_a_long_prompt_for_the_embedded_model(start_proxy: StartProxy) -> None:
    proxy = await start_proxy(ADMIN + "[fuse]\nmax_context_tokens = 500", embedded=True)
    body = {"messages": [{"role": "user", "content": "All work and no play. " * 40_000}]}
    status, _, answer = await post(proxy, body)
    assert status == 422
    counted = int(answer["error"]["message"].split("at least ")[1].split(" ")[0])
    assert 500 < counted <= 550


async def test_any_other_gguf_file_can_be_named_and_a_bad_one_is_one_clear_error(
    start_proxy: StartProxy, tmp_path: Any
) -> None:
    text = """
[admin]
port = 0
[[backends]]
name = "mine"
kind = "embedded"
weights = "{weights}"
window_tokens = 1024
slots = 1
[[models]]
name = "my-model"
targets = [{{ backend = "mine" }}]
"""
    proxy = await start_proxy(text.format(weights=find_weights()))
    status, headers, _ = await post(proxy, {"model": "my-model", "messages": QUESTION, "max_tokens": 9999})
    assert status == 200
    assert int(headers["x-chatfuse-max-tokens"]) < 1024
    await proxy.stop()
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really" * 100)
    for weights in (bad, tmp_path / "missing.gguf"):
        with pytest.raises(EngineFailed) as failed:
            await proxy_fixture.start(tmp_path, text.format(weights=weights))
        assert "\n" not in str(failed.value)
        assert weights.name in str(failed.value)


async def test_no_name_of_a_cap_slips_past_the_ceiling(start_proxy: StartProxy) -> None:
    proxy = await start_proxy(ADMIN + "[cap]\nmax_tokens = 5", embedded=True)
    for asked in ({"n_predict": 40}, {"max_tokens": -1}, {"max_completion_tokens": 40, "n_predict": -1}, {}):
        status, _, answer = await post(proxy, {"messages": QUESTION, "temperature": 0, **asked})
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] <= 5
