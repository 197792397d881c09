"""The prompt after the next cut, sent ahead to a backend of ours: with what, when, and that it gives way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.conftest import StartProxy
from tests.fakes.upstream import Answer, Peer, Received, ScriptedUpstream, completion, json_answer
from tests.wire.talk import MEMORY, SUMMARY, Talk, config, is_question, nothing

ANSWER_TOKENS = 40
"""About what the client then sends back as the answer."""


def prewarming(upstream: ScriptedUpstream, strategy: str = "trim", auth: str = "none") -> str:
    summary = f", summary = {SUMMARY}" if strategy == "summarize" else ""
    return config(upstream, f", prewarm = true{summary}", strategy=strategy, auth=auth)


def is_ahead(request: Received) -> bool:
    return bool(request.json.get("max_tokens") == 1)


async def well(request: Received, peer: Peer) -> None:
    reply = completion(MEMORY if is_question(request) else "Well.")
    reply["usage"]["completion_tokens"] = ANSWER_TOKENS
    await json_answer(reply)(request, peer)


def aheads(upstream: ScriptedUpstream) -> list[list[dict[str, Any]]]:
    return [request.json["messages"] for request in upstream.received if is_ahead(request)]


class Watched(Talk):
    @property
    def sent(self) -> list[dict[str, Any]]:
        last = [r for r in self.upstream.received if not is_question(r) and not is_ahead(r)][-1]
        messages: list[dict[str, Any]] = last.json["messages"]
        return messages


async def grow_until_cut(talk: Watched) -> dict[str, str]:
    for _ in range(30):
        headers = await talk.turn()
        if int(headers["x-chatfuse-dropped-turns"]):
            return headers
    raise AssertionError("nothing was cut")


async def test_the_turn_that_cuts_finds_its_prefix_sent_before_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = well
    proxy = await start_proxy(prewarming(upstream))
    talk = Watched(proxy, upstream)
    dropped, found = "0", 0
    for _ in range(25):
        headers = await talk.turn()
        if headers["x-chatfuse-dropped-turns"] != dropped:
            dropped = headers["x-chatfuse-dropped-turns"]
            ahead = aheads(upstream)[-1]
            assert talk.sent[: len(ahead)] == ahead
            assert ahead[-1]["role"] == "user"  # up to the last message that the client had sent
            found += 1
    assert found >= 3
    metrics = await proxy.metrics()
    assert metrics['chatfuse_prewarms_total{outcome="done"}'] >= found
    # Where no cut is near, nothing is sent.
    assert len(aheads(upstream)) <= 2 * found + 1


async def test_with_a_summary_the_prefix_has_it_and_keeps_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = well
    talk = Watched(await start_proxy(prewarming(upstream, "summarize")), upstream)
    headers = await grow_until_cut(talk)
    assert headers["x-chatfuse-summary"] == "used"
    ahead = aheads(upstream)[-1]
    assert MEMORY in ahead[1]["content"]
    assert talk.sent[: len(ahead)] == ahead


async def test_with_a_clients_key_nothing_is_sent_ahead(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = well
    talk = Watched(await start_proxy(prewarming(upstream, auth="client")), upstream)
    await grow_until_cut(talk)
    assert aheads(upstream) == []


async def test_what_is_sent_ahead_gives_way_to_a_request(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    arrived = asyncio.Event()
    gone: list[Peer] = []

    async def hang(request: Received, peer: Peer) -> None:
        if is_ahead(request):
            gone.append(peer)
            arrived.set()
            await peer.wait_gone()
            peer.keep_open = False
        else:
            await well(request, peer)

    upstream.default = hang
    proxy = await start_proxy(prewarming(upstream))
    talk = Watched(proxy, upstream)
    talk.settled = nothing  # type: ignore[method-assign]
    for _ in range(30):
        await talk.turn()
        with suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), 0.2)
            break
    async with asyncio.timeout(20):
        await talk.turn()
        await gone[0].gone.wait()
    metrics = await proxy.metrics()
    assert metrics['chatfuse_prewarms_total{outcome="gave_way"}'] >= 1


async def test_a_backend_that_refuses_it_costs_nothing(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    def refuse(answer: Answer) -> Answer:
        async def either(request: Received, peer: Peer) -> None:
            if is_ahead(request):
                await json_answer({"error": {"message": "no"}}, 400)(request, peer)
            else:
                await answer(request, peer)

        return either

    upstream.default = refuse(well)
    proxy = await start_proxy(prewarming(upstream))
    await grow_until_cut(Watched(proxy, upstream))
    metrics = await proxy.metrics()
    assert metrics['chatfuse_prewarms_total{outcome="failed"}'] >= 1
