"""Several workers on one socket: metrics right across them, a crashed one replaced, a drain that loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import aiohttp
import psutil
import pytest

from proxy import server
from proxy.server import Processes
from tests.conftest import StartProxy
from tests.fakes.upstream import DONE, SSE_HEAD, Peer, Received, ScriptedUpstream, delta, paused_answer
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


async def until(condition: Callable[[], bool]) -> None:
    """For what other processes do, of which no event tells."""
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.01)


def text_in_force(proxy: Proxy) -> str:
    assert isinstance(proxy.running.crew, Processes)
    return proxy.running.crew.text


def starting(proxy: Proxy) -> list[psutil.Process]:
    """Worker processes that do not serve yet."""
    return [
        child
        for child in psutil.Process().children()
        if child.pid not in pids(proxy)
        and child.status() != psutil.STATUS_ZOMBIE
        and "proxy.worker" in child.cmdline()
    ]


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

    upstream.then(paused_answer(go, [delta("one")], [DONE]))
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


@pytest.mark.parametrize("second_signal", [False, True])
async def test_what_outlasts_the_drain_ends_with_an_error_event(
    start_proxy: StartProxy, upstream: ScriptedUpstream, second_signal: bool
) -> None:
    async def endless(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        await peer.chunk(delta("one"))
        await peer.wait_gone()
        peer.keep_open = False

    upstream.then(endless)
    drain_s = 300 if second_signal else 0.3
    proxy = await start_proxy(openai_config(upstream.base_url, f"[server]\ndrain_s = {drain_s}"))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        assert await answer.content.readany() == delta("one")
        proxy.running.stop.set()
        if second_signal:
            while await takes_connections(proxy.port):
                await asyncio.sleep(0.01)  # until the drain has begun
            proxy.running.abort.set()
        async with asyncio.timeout(BOUND_S):
            rest = await answer.read()
    assert rest.startswith(b'data: {"error":')
    assert b'"draining"' in rest
    assert await proxy.task == 1


async def takes_connections(port: int) -> bool:
    """Whether the proxy still takes connections."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


FUSE = TWO + "[fuse]\nmax_context_tokens = 5"


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    slow = pids(proxy)[0]
    assert await asyncio.gather(*(post(proxy) for _ in range(10))) == [200] * 10
    os.kill(slow, signal.SIGSTOP)
    # More than one question stays unanswered: this one's, and those that are asked each second.
    for _ in range(2):
        await proxy.metrics()
    os.kill(slow, signal.SIGCONT)
    proxy.config.write_text(openai_config(upstream.base_url, FUSE))
    assert await proxy.running.reload() is None
    assert await asyncio.gather(*(post(proxy) for _ in range(20))) == [422] * 20
    assert (await proxy.metrics())[OK] == 10
    # A change of the file is still seen.
    proxy.config.write_text(openai_config(upstream.base_url, TWO))
    async with asyncio.timeout(BOUND_S):
        while await asyncio.gather(*(post(proxy) for _ in range(10))) != [200] * 10:
            await asyncio.sleep(0.05)
    assert pids(proxy)[0] == slow
    assert await proxy.stop() == 0


async def test_a_scrape_does_not_wait_for_a_reload(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    assert await asyncio.gather(*(post(proxy) for _ in range(10))) == [200] * 10
    assert (await proxy.metrics())[OK] == 10
    slow = pids(proxy)[0]
    os.kill(slow, signal.SIGSTOP)
    proxy.config.write_text(openai_config(upstream.base_url, FUSE))
    reload = asyncio.ensure_future(proxy.running.reload())
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(server.APPLY_S / 3):
            assert (await proxy.metrics())[OK] == 10
        assert not reload.done()
    finally:
        os.kill(slow, signal.SIGCONT)
    assert await reload is None


async def test_a_reload_reaches_a_worker_that_is_just_starting(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    os.kill(pids(proxy)[0], signal.SIGKILL)
    await until(lambda: bool(starting(proxy)))
    newcomer = starting(proxy)[0].pid
    os.kill(newcomer, signal.SIGSTOP)
    try:
        proxy.config.write_text(openai_config(upstream.base_url, FUSE))
        assert await proxy.running.reload() is None
    finally:
        os.kill(newcomer, signal.SIGCONT)
    await until(lambda: newcomer in pids(proxy))
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [422] * 40


async def test_a_reload_holds_when_a_worker_dies_of_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    dying = pids(proxy)[0]
    os.kill(dying, signal.SIGSTOP)
    proxy.config.write_text(openai_config(upstream.base_url, FUSE))
    reload = asyncio.ensure_future(proxy.running.reload())
    await until(lambda: text_in_force(proxy) == proxy.config.read_text())
    os.kill(dying, signal.SIGKILL)
    assert await reload is None
    await until(lambda: len(pids(proxy)) == 2 and dying not in pids(proxy))
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [422] * 40


async def test_a_worker_that_does_not_take_the_config_is_replaced_by_one_that_does(
    start_proxy: StartProxy, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "APPLY_S", 1.0)
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    stuck = pids(proxy)[0]
    os.kill(stuck, signal.SIGSTOP)
    proxy.config.write_text(openai_config(upstream.base_url, FUSE))
    async with asyncio.timeout(BOUND_S):
        assert await proxy.running.reload() is None
    await until(lambda: len(pids(proxy)) == 2 and stuck not in pids(proxy))
    assert await asyncio.gather(*(post(proxy) for _ in range(40))) == [422] * 40
    assert not psutil.pid_exists(stuck)


async def test_a_config_that_every_worker_refuses_is_refused(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    before = pids(proxy)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    key = proxy.config.with_name("key")
    key.write_text("sk-there-for-a-moment")
    fuse = openai_config(upstream.base_url, FUSE, backend='auth = "config"\napi_key = "file:key"')
    proxy.config.write_text(fuse)
    reload = asyncio.ensure_future(proxy.running.reload())
    await until(lambda: text_in_force(proxy) == fuse)
    key.unlink()
    for pid in before:
        os.kill(pid, signal.SIGCONT)
    assert "api_key" in (await reload or "")
    assert await asyncio.gather(*(post(proxy) for _ in range(20))) == [200] * 20
    assert pids(proxy) == before
    # The old config is in force for those that come, too.
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: len(pids(proxy)) == 2 and before[0] not in pids(proxy))
    assert await asyncio.gather(*(post(proxy) for _ in range(20))) == [200] * 20


async def test_a_worker_that_starts_while_we_stop_is_ended_and_not_waited_for(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()

    upstream.then(paused_answer(go, [delta("one")], [DONE]))
    proxy = await start_proxy(openai_config(upstream.base_url, TWO))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        assert await answer.content.readany() == delta("one")
        idle = next(pid for pid in pids(proxy) if not serves(pid, proxy.port))
        os.kill(idle, signal.SIGKILL)
        await until(lambda: bool(starting(proxy)))
        newcomer = starting(proxy)[0]
        proxy.running.stop.set()
        await until(lambda: not newcomer.is_running())
        assert not answer.content.at_eof()
        go.set()
        assert await answer.read() == DONE
    assert await proxy.task == 0
    assert starting(proxy) == []


def serves(pid: int, port: int) -> bool:
    """Whether this process has a client."""
    return any(
        connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
        for connection in psutil.Process(pid).net_connections("tcp")
    )
