"""How the whole ends: a drain, a drain cut short, a supervisor that is killed; and what an engine that hangs stops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from proxy.config import Config
from proxy.config_source import Source
from proxy.server import ConfigKeeper
from proxy.telemetry.snapshot import Snapshot
from tests.conftest import StartProxy
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import DONE, SSE_HEAD, Peer, Received, ScriptedUpstream, delta, paused_answer
from tests.proxy_fixture import openai_config
from tests.wire.requests import chat

ROOT = Path(__file__).parents[2]
BOUND_S = 60.0
AT_ONCE_S = 10.0
"""Far less than the drain, and enough for a busy machine."""

WITH_ENGINE = """
[[backends]]
name = "engine"
kind = "embedded"
window_tokens = 1024
slots = 1
[[models]]
name = "smollm2"
targets = [{ backend = "engine" }]
"""
LONG_DRAIN = "[server]\nworkers = {workers}\ndrain_s = 600\n"


@dataclass
class Serving:
    """`chatfuse serve`, a process of its own, and all that it has started."""

    process: asyncio.subprocess.Process
    port: int
    children: list[psutil.Process]

    async def ended(self, limit_s: float) -> int:
        async with asyncio.timeout(limit_s):
            code = await self.process.wait()
            while left := [child for child in self.children if runs(child)]:
                psutil.wait_procs(left, timeout=0)
                await asyncio.sleep(0.01)
        return code


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def serve(folder: Path, text: str) -> AsyncIterator[Serving]:
    config = folder / "c.toml"
    config.write_text(text)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "CHATFUSE_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(config), "--port", "0"),
        env={**own, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    children: list[psutil.Process] = []
    try:
        async with asyncio.timeout(BOUND_S):
            while b"listening" not in (line := await process.stdout.readline()):
                assert line, "it did not start"
        children = psutil.Process(process.pid).children(recursive=True)
        yield Serving(process, int(line.decode().rsplit(":", 1)[1]), children)
    finally:
        for child in children:
            if runs(child):
                child.kill()
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def endless(_: Received, peer: Peer) -> None:
    await peer.write(SSE_HEAD)
    await peer.chunk(delta("one"))
    await peer.wait_gone()
    peer.keep_open = False


@asynccontextmanager
async def open_stream(port: int) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(port)
    try:
        await client.post("/v1/chat/completions", chat(stream=True))
        assert (await client.head())[0] == 200
        assert await client.chunk() == delta("one")
        yield client
    finally:
        await client.close()


async def refused(port: int) -> None:
    """Returns when nobody listens there any more: the drain has begun."""
    async with asyncio.timeout(AT_ONCE_S):
        while True:
            try:
                client = await RawClient.connect(port)
            except ConnectionRefusedError:
                return
            await client.close()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_connects_during_a_drain_is_refused_and_what_runs_goes_on(
    workers: int, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()

    upstream.then(paused_answer(go, [delta("one")], [DONE]))
    proxy = await start_proxy(openai_config(upstream.base_url, LONG_DRAIN.format(workers=workers)))
    try:
        async with open_stream(proxy.port) as client:
            proxy.running.stop.set()
            await refused(proxy.port)
            go.set()
            assert await client.chunk() == DONE
    finally:
        go.set()
    assert await proxy.task == 0


@pytest.mark.parametrize(("workers", "name"), [(1, signal.SIGTERM), (2, signal.SIGINT), (2, signal.SIGTERM)])
async def test_a_second_signal_ends_the_drain_at_once_and_everything_with_it(
    workers: int, name: signal.Signals, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.default = endless
    text = openai_config(upstream.base_url, LONG_DRAIN.format(workers=workers)) + WITH_ENGINE
    async with serve(tmp_path, text) as serving, open_stream(serving.port):
        serving.process.send_signal(name)
        await refused(serving.port)
        assert serving.process.returncode is None
        assert all(runs(child) for child in serving.children)
        serving.process.send_signal(name)
        assert await serving.ended(AT_ONCE_S) == 1


@pytest.mark.parametrize("draining", [False, True])
async def test_a_killed_supervisor_leaves_no_process(
    draining: bool, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.default = endless
    text = openai_config(upstream.base_url, LONG_DRAIN.format(workers=2)) + WITH_ENGINE
    async with serve(tmp_path, text) as serving:
        lines = [" ".join(child.cmdline()) for child in serving.children]
        assert sum("proxy.worker" in line for line in lines) == 2
        assert sum("llama_child" in line for line in lines) >= 1
        async with open_stream(serving.port):
            if draining:
                serving.process.terminate()
                await refused(serving.port)
            serving.process.kill()
            assert await serving.ended(AT_ONCE_S) == -signal.SIGKILL


async def test_a_clean_stop_of_workers_with_an_engine_keeps_their_last_counts(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    text = openai_config(upstream.base_url, "[server]\nworkers = 2\n") + WITH_ENGINE
    proxy = await start_proxy(text)

    async def post() -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.base_url}/chat/completions", data=chat()) as answer,
        ):
            return answer.status

    assert await asyncio.gather(*(post() for _ in range(20))) == [200] * 20
    assert await proxy.stop() == 0
    samples = (await proxy.running.crew.snapshot()).samples["chatfuse_requests"]
    ok = [
        value
        for (name, labels), value in samples.items()
        if name.endswith("_total") and ("outcome", "ok") in labels
    ]
    assert sum(ok) == 20


def engine_process() -> psutil.Process:
    found = psutil.Process().children(recursive=True)
    return next(child for child in found if "backends.llama_child" in child.cmdline())


def connections_to(port: int) -> int:
    processes = [psutil.Process(), *psutil.Process().children()]
    return sum(
        bool(connection.raddr) and connection.raddr.port == port
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
    )


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_engine_that_hangs_holds_up_neither_scrapes_nor_reloads(
    workers: int, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    text = openai_config(upstream.base_url, f"[server]\nworkers = {workers}\n") + WITH_ENGINE
    proxy = await start_proxy(text)
    state = 'chatfuse_backend_state{backend="engine"}'

    async def until_state(value: float) -> None:
        async with asyncio.timeout(BOUND_S):
            while (await proxy.metrics()).get(state) != value:
                await asyncio.sleep(0.05)

    await until_state(1)
    engine = engine_process()
    port = next(c.laddr.port for c in engine.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    engine.suspend()
    try:
        async with asyncio.timeout(AT_ONCE_S):
            await asyncio.gather(*(proxy.metrics() for _ in range(20)))
        assert connections_to(port) <= workers
        await until_state(0)
        proxy.config.write_text(
            text.replace("[[backends]]", "[fuse]\nmax_context_tokens = 5\n[[backends]]", 1)
        )
        async with asyncio.timeout(AT_ONCE_S), aiohttp.ClientSession() as session:
            status = 200
            while status != 422:
                async with session.post(f"{proxy.base_url}/chat/completions", data=chat()) as answer:
                    status = answer.status
    finally:
        engine.resume()
    await until_state(1)
    assert await proxy.stop() == 0


class FailingOnce:
    """A crew in which everything fails the first time, in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.applied: asyncio.Queue[str] = asyncio.Queue()

    def _fail_once(self, what: str) -> None:
        if what not in self.failed:
            self.failed.add(what)
            raise KeyError(what)

    async def start(self) -> None: ...

    async def snapshot(self) -> Snapshot:
        self._fail_once("snapshot")
        return Snapshot()

    async def apply(self, settings: Config, text: str) -> None:
        self._fail_once("apply")
        await self.applied.put(text)

    async def stop(self, drain_s: float) -> bool:
        return True


async def test_no_error_ends_the_watch_of_the_config_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("")
    source = Source(config, {}, False)
    crew = FailingOnce()
    keeper = ConfigKeeper(source, source.parse(""), "", crew)
    watching = asyncio.create_task(keeper.watch())
    try:
        async with asyncio.timeout(BOUND_S):
            for _ in range(2):
                keeper.ask()
                while "apply" not in crew.failed:
                    await asyncio.sleep(0.01)
            assert await crew.applied.get() == ""
            config.write_text("[fuse]\nmax_context_tokens = 5\n")
            assert await crew.applied.get() == config.read_text()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    assert crew.failed == {"snapshot", "apply"}
    errors = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
    assert errors == {"'snapshot'", "'apply'"}
