"""Small things that users run into."""

from __future__ import annotations

import asyncio

import aiohttp
import openai

from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

BOUND_S = 30.0


async def get(proxy: Proxy, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, proxy.url + path, headers=headers) as answer,
    ):
        return answer.status, dict(answer.headers)


HOUSE = '\n[[models]]\nname = "house"\ntargets = [{ backend = "up" }]\n'


async def test_a_model_of_ours_can_be_retrieved_by_its_name(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url) + HOUSE)
    async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key="k", max_retries=0) as client:
        assert (await client.models.retrieve("house")).owned_by == "up"
    assert upstream.received == []
    await get(proxy, "/v1/models/gpt-4o")
    assert upstream.received[0].path == "/v1/models/gpt-4o"


async def test_a_caller_retrieves_only_what_it_may_use(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    text = '[[callers]]\nname = "a"\nkey = "env:A"\nmodels = ["house"]'
    backend = 'auth = "config"\napi_key = "env:UP"'
    proxy = await start_proxy(
        openai_config(upstream.base_url, text, backend=backend) + HOUSE, {"A": "key-a", "UP": "sk-up"}
    )
    key = {"Authorization": "Bearer key-a"}
    assert (await get(proxy, "/v1/models/house", **key))[0] == 200
    assert (await get(proxy, "/v1/models/gpt-4o", **key))[0] in (403, 404)
    assert upstream.received == []


async def test_a_name_that_is_not_served_says_why(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url) + '[not_served]\n"gpt-4" = "use gpt-4o"\n')
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(model="gpt-4")) as answer,
    ):
        assert answer.status == 404
        assert "use gpt-4o" in (await answer.json())["error"]["message"]
    assert upstream.received == []


async def test_without_the_extra_a_prompt_for_the_embedded_model_stays_here(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("[admin]\nport = 0", embedded=False)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", data=chat(model="smollm2")) as answer,
    ):
        assert answer.status == 404
        assert "pip install" in (await answer.json())["error"]["message"]


async def test_an_upstream_that_is_back_is_ready_again_without_a_request(start_proxy: StartProxy) -> None:
    async with ScriptedUpstream() as gone:
        port = gone.port
    proxy = await start_proxy(openai_config(f"http://127.0.0.1:{port}/v1"))
    async with aiohttp.ClientSession() as session:
        await session.post(f"{proxy.base_url}/chat/completions", data=chat())
    assert (await get(proxy, "/readyz"))[0] == 503
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    async with asyncio.timeout(BOUND_S):
        while (await get(proxy, "/readyz"))[0] != 200:
            await asyncio.sleep(0.05)
    server.close()


async def test_a_key_that_is_rotated_in_its_file_is_in_force_without_a_signal(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    plain = await start_proxy(openai_config(upstream.base_url))
    key = plain.config.with_name("key")
    key.write_text("sk-one")
    backend = f'auth = "config"\napi_key = "file:{key}"'
    proxy = await start_proxy(openai_config(upstream.base_url, backend=backend))

    async def sent() -> str | None:
        async with aiohttp.ClientSession() as session:
            await session.post(f"{proxy.base_url}/chat/completions", data=chat())
        return upstream.received[-1].header("authorization")

    assert await sent() == "Bearer sk-one"
    key.write_text("sk-two")
    async with asyncio.timeout(BOUND_S):
        while await sent() != "Bearer sk-two":
            await asyncio.sleep(0.05)


async def test_a_wrong_method_says_which_one_is_right(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    status, headers = await get(proxy, "/chatfuse/explain")
    assert (status, headers["Allow"]) == (405, "POST")
    assert (await get(proxy, "/v1/chat/completions", "PUT"))[0] == 405
    assert (await get(proxy, "/healthz", "POST"))[0] == 405
