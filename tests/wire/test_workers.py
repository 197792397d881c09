"""Several workers on one socket: metrics right across them, a crashed one replaced, a drain that loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import psutil

from proxy.server import Processes
from tests.conftest import StartProxy
from tests.fakes.upstream import DONE, SSE_HEAD, Peer, Received, ScriptedUpstream, delta
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

BOUND_S = 60.0
TWO = "[server]\nworkers = 2\n"
OK = 'chatfuse_requests_total{backend="up",model="gpt-4o",outcome="ok"}'


async def post(proxy: Proxy, body: bytes = b"") -> int:
    # A connection of its own each time, so that the kernel spreads them.
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=body or chat()) as answer,
    ):
        await answer.read()
        return answer.status


def pids(proxy: Proxy) -> list[int]:
    assert isinstance(proxy.running.crew, Processes)
    return proxy.running.crew.pids


async def test_metrics_are_the_sum_over_the_workers_also_of_one_that_was_killed(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [200] * 40
    assert (await proxy.metrics())[OK] == 40
    before = pids(proxy)
    os.kill(before[0], signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        while before[0] in pids(proxy) or len(pids(proxy)) < 2:
            await asyncio.sleep(0.05)
    assert before[1] in pids(proxy)
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [200] * 40
    assert (await proxy.metrics())[OK] == 80


async def test_a_reload_reaches_every_worker(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    proxy.config.write_text(openai_config(upstream.base_url, TWO + "[fuse]\nmax_context_tokens = 5"))
    assert await proxy.running.reload() is None
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [422] * 40
    # A worker that takes a crashed one's place has the new config too.
    os.kill(pids(proxy)[0], signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        while len(pids(proxy)) != 2 or not all(psutil.pid_exists(pid) for pid in pids(proxy)):
            await asyncio.sleep(0.05)
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [422] * 40


async def test_stopping_waits_for_streams_and_leaves_no_process(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()

    async def slow(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        await peer.chunk(delta("one"))
        await go.wait()
        await peer.chunk(DONE)
        await peer.write(b"0\r\n\r\n")

    upstream.then(slow)
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    workers = pids(proxy)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        assert await answer.content.readany() == delta("one")
        proxy.running.stop.set()
        await asyncio.sleep(0)
        go.set()
        assert await answer.read() == DONE
    assert await proxy.task == 0
    assert not any(psutil.pid_exists(pid) for pid in workers)


async def test_what_outlasts_the_drain_ends_with_an_error_event(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    async def endless(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        await peer.chunk(delta("one"))
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(endless)
    proxy = await start_proxy(openai_config(upstream.base_url, "[server]\ndrain_s = 0.3"))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        assert await answer.content.readany() == delta("one")
        proxy.running.stop.set()
        async with asyncio.timeout(BOUND_S):
            rest = await answer.read()
    assert rest.startswith(b'data: {"error":')
    assert b'"draining"' in rest
    assert await proxy.task == 1
