"""A changed config is applied whole or refused whole, while requests run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp

from tests.conftest import StartProxy
from tests.fakes.upstream import DONE, ScriptedUpstream, delta, paused_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

BOUND_S = 30.0
FUSE = "[fuse]\nmax_context_tokens = 5"


async def status(proxy: Proxy) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat()) as answer,
    ):
        return answer.status


async def until(proxy: Proxy, wanted: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while await status(proxy) != wanted:
            await asyncio.sleep(0.05)


async def test_a_changed_file_is_in_force_without_a_restart(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    assert await status(proxy) == 200
    proxy.config.write_text(openai_config(upstream.base_url, FUSE))
    await until(proxy, 422)


async def test_a_swapped_symbolic_link_is_seen(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    first, second = proxy.config.with_name("one.toml"), proxy.config.with_name("two.toml")
    first.write_text(openai_config(upstream.base_url))
    second.write_text(openai_config(upstream.base_url, FUSE))
    for target in (first, second):
        link = proxy.config.with_name("link")
        link.symlink_to(target)
        link.rename(proxy.config)
    await until(proxy, 422)


async def test_an_invalid_file_is_refused_whole_with_the_reason_and_the_old_one_stays(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, FUSE))
    proxy.config.write_text(
        openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 9000\nnonsense = 1")
    )
    assert "fuse.nonsense" in (await proxy.running.reload() or "")
    assert await status(proxy) == 422
    proxy.config.write_text("not toml [")
    assert await proxy.running.reload()
    assert await status(proxy) == 422
    proxy.config.unlink()
    assert await proxy.running.reload()
    assert await status(proxy) == 422


async def test_keys_that_need_a_restart_refuse_the_reload_by_name(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    proxy.config.write_text(
        openai_config(upstream.base_url, FUSE).replace("[admin]\nport = 0", "[admin]\nport = 1")
    )
    assert "admin.port" in (await proxy.running.reload() or "")
    assert await status(proxy) == 200


async def test_a_request_in_progress_ends_on_the_config_that_it_began_with(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()

    upstream.then(paused_answer(go, [delta("one")], [DONE]))
    proxy = await start_proxy(openai_config(upstream.base_url))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(stream=True)) as answer,
    ):
        assert await answer.content.readany() == delta("one")
        async with ScriptedUpstream() as other:
            proxy.config.write_text(openai_config(other.base_url))
            assert await proxy.running.reload() is None
            assert await status(proxy) == 200
            assert len(other.received) == 1
            go.set()
            assert await answer.read() == DONE


async def test_sighup_reads_the_file_and_its_keys_again(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    key = tmp_path / "key"
    key.write_text("sk-one")
    config = tmp_path / "c.toml"
    config.write_text(openai_config(upstream.base_url, backend='auth = "config"\napi_key = "file:key"'))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "serve", "--config", str(config), "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        while b"listening" not in (line := await process.stdout.readline()):
            assert line
        base = line.split()[-1].decode()

        async def sent_key() -> str | None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{base}/v1/chat/completions", data=chat()) as answer,
            ):
                assert answer.status == 200
            return upstream.received[-1].header("authorization")

        assert await sent_key() == "Bearer sk-one"
        key.write_text("sk-two")
        os.kill(process.pid, signal.SIGHUP)
        while await sent_key() != "Bearer sk-two":
            await asyncio.sleep(0.05)
        process.terminate()
        assert await process.wait() == 0
