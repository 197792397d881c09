"""Nothing is kept of a request after it has ended, however it ended."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

from backends.http_reply import HttpReply
from proxy.exchange import Attempt, Exchange
from proxy.handlers.call import Call
from tests.conftest import StartProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import (
    DONE,
    SSE_HEAD,
    Peer,
    Received,
    ScriptedUpstream,
    delta,
    json_answer,
    sse_answer,
)
from tests.proxy_fixture import openai_config
from tests.wire.requests import chat

BOUND_S = 60.0


def alive() -> Counter[str]:
    gc.collect()
    kinds = (Exchange, Attempt, HttpReply, Call, asyncio.Task, asyncio.TimerHandle)
    return Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, kinds))


async def slow(_: Received, peer: Peer) -> None:
    await peer.write(SSE_HEAD)
    await peer.chunk(delta("x"))
    await peer.wait_gone()
    peer.keep_open = False


async def reset(_: Received, peer: Peer) -> None:
    peer.reset()


async def test_no_memory_task_or_timer_is_kept_after_a_stream(
    start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Callable[[int], Awaitable[RawClient]]
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))

    async def round_of_endings() -> None:
        for answer in (
            sse_answer([delta("x"), DONE]),
            sse_answer([delta("x")], end=False),
            json_answer({"error": {}}, 500),
            reset,
        ):
            upstream.then(answer)
            client = await raw(proxy.port)
            await client.post("/v1/chat/completions", chat(stream=True), "Connection: close\r\n")
            await client.answer()
            await client.close()
        upstream.then(slow)
        client = await raw(proxy.port)
        await client.post("/v1/chat/completions", chat(stream=True))
        await client.head()
        await client.chunk()
        client.reset()
        await upstream.peers[-1].gone.wait()

    async with asyncio.timeout(BOUND_S):
        await round_of_endings()
        before = alive()
        for _ in range(20):
            await round_of_endings()
        # The last connections' tasks end in their own time.
        while (now := alive()) - before:
            await asyncio.sleep(0.05)
    assert not now["Exchange"]
    assert not now["HttpReply"]


async def test_every_request_is_accounted_once(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))

    async def one(number: int) -> None:
        client = await RawClient.connect(proxy.port)
        await client.post("/v1/chat/completions", chat(stream=bool(number % 2)))
        if number % 5 == 0:
            client.reset()
        else:
            await client.answer()
        await client.close()

    upstream.default = json_answer({"usage": {"prompt_tokens": 8}})
    await asyncio.gather(*(one(number) for number in range(100)))
    async with asyncio.timeout(BOUND_S):
        while True:
            metrics = await proxy.metrics()
            total = sum(value for key, value in metrics.items() if key.startswith("chatfuse_requests_total"))
            # A connection that was cut before its request was read is no request.
            if metrics['chatfuse_inflight{backend="up"}'] == 0 and 80 <= total <= 100:
                break
            await asyncio.sleep(0.05)
