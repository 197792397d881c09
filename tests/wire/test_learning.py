"""What is learned of an upstream that tells: its window, its count, and what its replies say of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import Answer, Peer, Received, ScriptedUpstream, completion, json_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat, conversation

BOUND_S = 20.0
CLOSE = [("Connection", "close")]
NAMED = """
[[models]]
name = "gpt-4o"
targets = [{ backend = "up" }]
"""


def vllm(window: int = 1000, counts: Callable[[Received], int] | None = None, name: str = "gpt-4o") -> Answer:
    """Tells what vLLM tells: its models, and counts by `/tokenize`."""

    async def answer(asked: Received, peer: Peer) -> None:
        if asked.path == "/v1/models":
            card = {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": window}
            await json_answer({"object": "list", "data": [card]}, 200, CLOSE)(asked, peer)
        elif asked.path == "/tokenize" and counts is not None:
            body = {"count": counts(asked), "max_model_len": window, "tokens": []}
            await json_answer(body, 200, CLOSE)(asked, peer)
        else:
            await json_answer({}, 404, CLOSE)(asked, peer)

    return answer


async def post(proxy: Proxy, body: bytes) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=body) as answer,
    ):
        await answer.read()
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}


async def explained(
    proxy: Proxy, body: bytes, until: Callable[[dict[str, object]], bool]
) -> dict[str, object]:
    """What explain says once something has been learned; learning goes on beside the requests."""
    async with asyncio.timeout(BOUND_S), aiohttp.ClientSession() as session:
        while True:
            async with session.post(f"{proxy.url}/chatfuse/explain", data=body) as answer:
                said: dict[str, object] = await answer.json()
            if until(said):
                return said


async def test_the_window_is_what_the_server_says_and_a_long_chat_is_trimmed_to_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.tells = vllm(1000, lambda asked: len(asked.body) // 4)
    config = openai_config(upstream.base_url, '[context]\nstrategy = "trim"\n')
    proxy = await start_proxy(config)
    body = json.dumps(conversation(20)).encode()
    said = await explained(proxy, body, lambda said: said["window"] == 1000)
    assert said["budget"] == 750
    status, headers = await post(proxy, body)
    assert status == 200
    assert int(headers["x-chatfuse-tokens-in"]) <= 750
    assert int(headers["x-chatfuse-dropped-turns"]) > 0


async def test_a_server_that_counts_is_asked_where_no_tokenizer_is_named(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.tells = vllm(4096, lambda _: 77, name="house")
    proxy = await start_proxy(openai_config(upstream.base_url))
    body = chat(model="house")
    await explained(proxy, body, lambda said: said["tokens"] == 77)
    status, headers = await post(proxy, body)
    assert (status, headers["x-chatfuse-tokens-original"]) == (200, "77")
    questions = [asked.json for asked in upstream.asked if asked.path == "/tokenize"]
    assert {"model": "house", "messages": [{"role": "user", "content": "hi"}]} in questions


async def test_a_window_that_grew_with_a_restart_is_seen_after_the_lost_connection(
    start_proxy: StartProxy,
) -> None:
    async with ScriptedUpstream() as before:
        before.tells = vllm(1000)
        port = before.port
        proxy = await start_proxy(openai_config(before.base_url))
        await explained(proxy, chat(), lambda said: said["window"] == 1000)
    status, _ = await post(proxy, chat())
    assert status == 502
    async with ScriptedUpstream(port=port) as after:
        after.tells = vllm(2000)
        await explained(proxy, chat(), lambda said: said["window"] == 2000)


async def test_an_upstream_that_tells_nothing_is_asked_once_and_serves(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    status, _ = await post(proxy, chat())
    assert status == 200
    assert [asked.path for asked in upstream.asked] == ["/v1/models"]
    assert upstream.asked[0].header("authorization") is None


async def test_nonsense_from_the_server_is_learned_from_by_nobody(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.tells = json_answer(
        {"data": [{"id": "gpt-4o", "owned_by": [], "max_model_len": "many"}]}, 200, CLOSE
    )
    proxy = await start_proxy(openai_config(upstream.base_url))
    status, _ = await post(proxy, chat())
    assert status == 200


async def test_a_tokenizer_that_counts_otherwise_than_its_server_is_found_out_at_start(
    start_proxy: StartProxy, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.tells = vllm(4096, lambda _: 123)
    model = 'tokenizer = "cl100k_base"\n' + NAMED + 'tokenizer = "o200k_base"'
    proxy = await start_proxy(openai_config(upstream.base_url, model=model))
    await explained(proxy, chat(), lambda said: said["tokens"] == 123)
    warning = next(line for line in capsys.readouterr().err.splitlines() if "counts otherwise" in line)
    assert "'gpt-4o'" in warning
    assert "it 123" in warning


async def test_a_server_that_truncates_silently_raises_the_alarm(
    start_proxy: StartProxy, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.then(json_answer(completion(prompt_tokens=100)))
    proxy = await start_proxy(openai_config(upstream.base_url))
    await post(proxy, chat("secret word " * 400))
    alarm = next(line for line in capsys.readouterr().err.splitlines() if "truncates silently" in line)
    assert "100 prompt tokens of 8" in alarm
    assert "secret" not in alarm
    metrics = await proxy.metrics()
    assert metrics['chatfuse_silent_truncation_total{model="gpt-4o"}'] == 1


async def test_replies_over_the_count_keep_a_part_of_the_window_free(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model="window = 1000"))
    for extra in (15, 16, 17):  # never the same: no offset to be learned
        upstream.then(json_answer(completion(prompt_tokens=8 + extra)))
        _, headers = await post(proxy, chat(max_tokens=5000))
        assert headers["x-chatfuse-max-tokens"] == str(1000 - 8)
    _, headers = await post(proxy, chat(max_tokens=5000))
    assert headers["x-chatfuse-max-tokens"] == str(1000 - 20 - 8)
    metrics = await proxy.metrics()
    assert metrics['chatfuse_count_margin_ratio{model="gpt-4o"}'] == 0.02


async def test_what_a_server_adds_is_counted_once_its_first_reply_has_told(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = json_answer(completion(prompt_tokens=33))
    proxy = await start_proxy(openai_config(upstream.base_url))
    body = chat("hi", model="some-house-model")
    _, headers = await post(proxy, body)
    assert headers["x-chatfuse-tokens-in"] == "8"
    _, headers = await post(proxy, body)
    assert headers["x-chatfuse-tokens-in"] == "33"


async def test_a_gateway_that_hides_the_servers_own_paths_costs_the_count_and_no_request(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.tells = vllm(1000, counts=None)
    proxy = await start_proxy(openai_config(upstream.base_url))
    said = await explained(proxy, chat(), lambda said: said["window"] == 1000)
    assert said["tokens"] == 8
    status, _ = await post(proxy, chat())
    assert status == 200
