"""A model counted here, with its own tokenizer and template: the count before sending equals the usage after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backends.endpoint import Endpoint
from backends.engine_llama import LlamaEngine, LlamaOptions
from tests.conftest import StartProxy
from tests.live.test_smollm import conversations
from tests.proxy_fixture import Proxy
from tests.unit.tokens.template_models import SMOLLM, model_folder
from tests.wire.requests import conversation

CONFIG = """
[admin]
port = 0
[[backends]]
name = "llama"
kind = "openai"
base_url = "{base_url}/v1"
auth = "config"
api_key = "env:LLAMA_KEY"
keepalive_s = 0.001
[[models]]
name = "smollm2"
targets = [{{ backend = "llama" }}]
tokenizer = "{files}"
chat_template = {{ server = "llama.cpp" }}
window = 1024
context = {{ strategy = "trim" }}
"""


@pytest.fixture
async def llama() -> AsyncIterator[Endpoint]:
    """A real llama.cpp server, to the proxy an upstream like any other."""
    engine = LlamaEngine(LlamaOptions(window_tokens=1024, slots=2, threads=2))
    yield await engine.start()
    await engine.stop()


async def post(proxy: Proxy, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.base_url}/chat/completions", json={**body, "model": "smollm2"}) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()


async def test_the_local_count_equals_the_reported_usage_also_after_a_cut(
    start_proxy: StartProxy, llama: Endpoint, tmp_path: Path
) -> None:
    text = CONFIG.format(base_url=llama.base_url, files=model_folder(SMOLLM, tmp_path))
    proxy = await start_proxy(text, {"LLAMA_KEY": llama.api_key})
    bodies = [*conversations(), *(conversation(turns, words=30, max_tokens=1) for turns in range(12, 16))]
    for body in bodies:
        status, headers, answer = await post(proxy, body)
        assert status == 200, answer
        assert int(headers["x-chatfuse-tokens-in"]) == answer["usage"]["prompt_tokens"], body
    assert int(headers["x-chatfuse-dropped-turns"]) > 0
    metrics = await proxy.metrics()
    assert metrics['chatfuse_count_error_tokens_bucket{le="0.0",model="smollm2"}'] == len(bodies)
    assert metrics['chatfuse_count_error_tokens_bucket{le="-1.0",model="smollm2"}'] == 0


async def test_files_that_are_no_tokenizer_are_one_clear_error(
    start_proxy: StartProxy, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Exception, match=r"models\[0\]\.tokenizer: .*tokenizer") as failed:
        await start_proxy(CONFIG.format(base_url="http://127.0.0.1:1", files=tmp_path), {"LLAMA_KEY": "k"})
    assert "\n" not in str(failed.value)
