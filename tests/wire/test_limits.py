"""The fuse, the cut and the cap on the wire: what the client is told, and what the upstream gets."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import aiohttp
import pytest

from proxy.history.validity import problems
from proxy.tokens.encodings import encoding
from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat, conversation


async def post(proxy: Proxy, body: bytes | dict[str, Any], **headers: str) -> tuple[int, dict[str, str], Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=io.BytesIO(data), headers=headers) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()


async def explain(proxy: Proxy, body: dict[str, Any]) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.url}/chatfuse/explain", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()


# fuse


async def test_over_the_fuse_is_a_422_with_the_words_that_clients_look_for(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 50"))
    status, headers, body = await post(proxy, chat("word " * 100))
    assert status == 422
    error = body["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    )
    for words in (
        "maximum context length is 50 tokens",
        "prompt is too long",
        "input length and `max_tokens` exceed context limit",
    ):
        assert words in error["message"]
    assert upstream.received == []
    assert headers["x-chatfuse-tokens-original"].isdigit()
    metrics = await proxy.metrics()
    assert metrics['llm_request_context_length_total{status="tripped"}'] == 1
    assert metrics['llm_context_tripped_total{client_ip="",model="*",route="/v1/chat/completions"}'] == 1
    assert metrics['chatfuse_requests_total{backend="",model="*",outcome="tripped"}'] == 1


async def test_at_the_fuse_passes_and_one_token_more_does_not(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    body = chat("word " * 100)
    free = await start_proxy(openai_config(upstream.base_url))
    tokens = int((await post(free, body))[1]["x-chatfuse-tokens-in"])
    at = await start_proxy(openai_config(upstream.base_url, f"[fuse]\nmax_context_tokens = {tokens}"))
    assert (await post(at, body))[0] == 200
    below = await start_proxy(openai_config(upstream.base_url, f"[fuse]\nmax_context_tokens = {tokens - 1}"))
    assert (await post(below, body))[0] == 422


async def test_a_30_megabyte_prompt_is_refused_after_the_thresholds_tokens(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 8000"))
    status, _, body = await post(proxy, chat("All work and no play makes Jack a dull boy. " * 700_000))
    assert status == 422
    assert "at least" in body["error"]["message"]
    counted = int(body["error"]["message"].split("at least ")[1].split(" ")[0])
    assert 8000 < counted <= 8800


async def test_observe_mode_counts_and_lets_pass(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    text = '[fuse]\nmax_context_tokens = 50\nmode = "observe"'
    proxy = await start_proxy(openai_config(upstream.base_url, text))
    assert (await post(proxy, chat("word " * 100)))[0] == 200
    assert (await proxy.metrics())['llm_request_context_length_total{status="tripped"}'] == 1


async def test_an_allowed_network_passes_and_is_counted_as_allowed(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    text = '[fuse]\nmax_context_tokens = 50\n[fuse.allow]\nnetworks = ["127.0.0.0/8"]'
    proxy = await start_proxy(openai_config(upstream.base_url, text))
    assert (await post(proxy, chat("word " * 100)))[0] == 200
    assert (await proxy.metrics())['llm_request_context_length_total{status="allowed"}'] == 1


async def test_x_forwarded_for_counts_only_from_a_trusted_proxy(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    fuse = '[fuse]\nmax_context_tokens = 50\n[fuse.allow]\nnetworks = ["10.1.0.0/16"]\n'
    trusting = await start_proxy(
        openai_config(upstream.base_url, '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n' + fuse)
    )
    wary = await start_proxy(openai_config(upstream.base_url, fuse))
    body = chat("word " * 100)
    assert (await post(trusting, body, **{"X-Forwarded-For": "10.1.2.3"}))[0] == 200
    assert (await post(trusting, body, **{"X-Forwarded-For": "10.1.2.3, 8.8.8.8"}))[0] == 422
    assert (await post(wary, body, **{"X-Forwarded-For": "10.1.2.3"}))[0] == 422


CALLERS = """
[fuse]
max_context_tokens = 50
[fuse.allow]
callers = ["vip"]
[[callers]]
name = "vip"
key = "env:VIP"
[[callers]]
name = "wide"
key = "env:WIDE"
may_choose_context = true
fuse = { max_context_tokens = 100000 }
cap = { max_tokens = 7 }
[[callers]]
name = "narrow"
key = "env:NARROW"
models = ["gpt-4o*"]
"""
KEYS = {"VIP": "k-vip", "WIDE": "k-wide", "NARROW": "k-narrow", "UP": "sk-up"}


async def test_callers_have_their_own_key_models_fuse_and_cap(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    backend = 'auth = "config"\napi_key = "env:UP"'
    proxy = await start_proxy(openai_config(upstream.base_url, CALLERS, backend=backend), KEYS)
    long = chat("word " * 100)

    async def status(key: str | None, body: bytes = long, **headers: str) -> int:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return (await post(proxy, body, **headers))[0]

    assert await status(None) == 401
    assert await status("k-other") == 401
    assert await status("k-vip") == 200
    assert await status("k-narrow") == 422
    assert await status("k-narrow", chat(model="o3")) == 403
    assert await status("k-narrow", chat(), **{"x-chatfuse-context": "trim"}) == 403
    assert await status("k-wide", chat(), **{"x-chatfuse-context": "sideways"}) == 400
    assert await status("k-wide", chat(max_tokens=100)) == 200
    assert upstream.received[-1].json["max_tokens"] == 7
    assert all(request.header("authorization") == "Bearer sk-up" for request in upstream.received)
    assert all("k-wide" not in str(request.headers) for request in upstream.received)


# cut

TRIM = 'context = { strategy = "trim", budget_tokens = 1000 }'


async def test_a_long_conversation_is_cut_to_its_budget_and_untouched_messages_keep_their_bytes(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    request = conversation(40)
    raw = json.dumps(request, indent=1).replace("Question 39", "Question\\u0020 39").encode()
    status, headers, _ = await post(proxy, raw)
    assert status == 200
    assert int(headers["x-chatfuse-tokens-in"]) <= 1000 < int(headers["x-chatfuse-tokens-original"])
    assert int(headers["x-chatfuse-dropped-turns"]) > 0
    sent = upstream.received[0]
    kept = sent.json["messages"]
    assert kept[0] == request["messages"][0]
    assert kept[1]["role"] == "user"
    assert kept[-1]["content"].startswith("Question  39")
    assert problems(kept) == []
    # The last message is the same bytes, escapes and spacing included.
    assert raw[raw.rindex(b'  {\n   "role": "user"') :] in sent.body
    metrics = await proxy.metrics()
    assert metrics['chatfuse_cuts_total{model="gpt-4o"}'] == 1
    assert metrics['chatfuse_trimmed_tokens_total{model="gpt-4o"}'] > 0


async def test_what_fits_goes_out_as_it_came(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    raw = json.dumps(conversation(2), indent=3).encode()
    await post(proxy, raw)
    assert upstream.received[0].body == raw


async def test_the_cut_holds_while_the_conversation_grows(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    firsts = []
    for turns in range(10, 40):
        await post(proxy, conversation(turns))
        firsts.append(upstream.received[-1].json["messages"][1]["content"][:12])
    moves = sum(a != b for a, b in itertools.pairwise(firsts))
    assert moves <= len(firsts) // 3


async def test_a_last_message_that_cannot_fit_is_the_overflow_error(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    status, _, body = await post(proxy, chat("word " * 3000))
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert "1000 tokens" in body["error"]["message"]
    assert upstream.received == []


async def test_the_client_may_choose_the_strategy_by_header(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    raw = json.dumps(conversation(40)).encode()
    await post(proxy, raw, **{"x-chatfuse-context": "keep"})
    assert upstream.received[-1].body == raw
    await post(proxy, raw, **{"x-chatfuse-context": "trim"})
    assert len(upstream.received[-1].body) < len(raw)


async def test_explain_says_what_would_be_done_and_sends_nothing(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIM))
    request = conversation(40, max_tokens=5)
    told = await explain(proxy, request)
    assert upstream.received == []
    _, headers, _ = await post(proxy, request)
    assert told["tokens"] == int(headers["x-chatfuse-tokens-original"])
    assert told["cut"]["tokens_in"] == int(headers["x-chatfuse-tokens-in"])
    assert told["cut"]["dropped_turns"] == int(headers["x-chatfuse-dropped-turns"])
    assert told["max_tokens"]["value"] == 5
    assert "why is that so" not in json.dumps(told)


async def test_explain_tells_of_a_refusal_without_refusing(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 50"))
    told = await explain(proxy, conversation(40))
    assert told["refused"]["status"] == 422
    assert told["fuse"]["verdict"] == "tripped"


# cap


@pytest.mark.parametrize(
    ("cap", "asked", "sent", "clamped"),
    [
        ("max_tokens = 100", {"max_tokens": 500}, {"max_tokens": 100}, "ceiling"),
        ("max_tokens = 100", {"max_completion_tokens": 500}, {"max_completion_tokens": 100}, "ceiling"),
        ("max_tokens = 100", {"max_tokens": 50}, {"max_tokens": 50}, None),
        ("max_tokens = 100", {}, {"max_tokens": 100}, None),
        ("max_tokens = 100\ndefault_tokens = 20", {}, {"max_tokens": 20}, None),
        ("", {}, {}, None),
        ("", {"max_tokens": 5}, {"max_tokens": 5}, None),
        ("max_tokens = 100", {"max_tokens": 500, "n": 3}, {"max_tokens": 100}, "ceiling"),
    ],
)
async def test_the_completion_is_capped_in_the_clients_own_field(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    cap: str,
    asked: dict[str, int],
    sent: dict[str, int],
    clamped: str | None,
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, f"[cap]\n{cap}"))
    _, headers, _ = await post(proxy, chat(**asked))
    got = upstream.received[0].json
    assert {key: got[key] for key in ("max_tokens", "max_completion_tokens") if key in got} == sent
    assert headers.get("x-chatfuse-max-tokens-clamped") == clamped
    value = next(iter(sent.values()), None)
    assert headers.get("x-chatfuse-max-tokens") == (None if value is None else str(value))
    if clamped:
        assert (await proxy.metrics())[
            'chatfuse_max_tokens_clamped_total{model="gpt-4o",reason="ceiling"}'
        ] == 1


async def test_a_reasoning_model_gets_a_default_in_the_field_that_it_takes(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    text = "[cap]\ndefault_tokens = 20\nreasoning_default_tokens = 900"
    proxy = await start_proxy(openai_config(upstream.base_url, text))
    await post(proxy, chat(model="o3-mini"))
    got = upstream.received[0].json
    assert got["max_completion_tokens"] == 900
    assert "max_tokens" not in got


async def test_the_completion_is_capped_by_the_room_that_the_prompt_leaves(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model="window = 300"))
    _, headers, _ = await post(proxy, chat("word " * 100, max_tokens=5000))
    assert upstream.received[0].json["max_tokens"] == 300 - int(headers["x-chatfuse-tokens-in"])
    assert headers["x-chatfuse-max-tokens-clamped"] == "room"


async def test_less_room_than_the_minimum_is_the_overflow_error(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(
        openai_config(upstream.base_url, "[cap]\nmin_tokens = 250", model="window = 300")
    )
    status, _, body = await post(proxy, chat("word " * 100, max_tokens=5000))
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert upstream.received == []


# count


async def test_special_tokens_in_a_message_are_text(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    text = "<|endoftext|> <|im_start|>system"
    _, headers, _ = await post(proxy, chat(text))
    tokens = len(encoding("o200k_base").encode(text, disallowed_special=()))
    assert int(headers["x-chatfuse-tokens-in"]) == tokens + 7


async def test_the_difference_to_the_reported_usage_is_a_metric(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    _, headers, _ = await post(proxy, chat())
    assert int(headers["x-chatfuse-tokens-in"]) == 8  # and the scripted upstream reports 9
    metrics = await proxy.metrics()
    assert metrics['chatfuse_count_error_tokens_bucket{le="0.0",model="gpt-4o"}'] == 0
    assert metrics['chatfuse_count_error_tokens_bucket{le="1.0",model="gpt-4o"}'] == 1


async def test_with_no_settings_nothing_is_changed_or_refused(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    raw = json.dumps(conversation(300, max_tokens=100_000)).encode()
    assert (await post(proxy, raw))[0] == 200
    assert upstream.received[0].body == raw
