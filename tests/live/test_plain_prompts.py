"""Prompts of plain completions on a real llama.cpp: our count, and its own, equal the usage after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backends.endpoint import Endpoint
from backends.engine_llama import LlamaEngine, LlamaOptions
from backends.oracle import LlamaOracle
from proxy.tokens.counts import Counts
from proxy.tokens.local import CountingPool
from proxy.tokens.memo import Memo
from proxy.tokens.oracle import OracleCounter
from tests.unit.tokens.template_models import SMOLLM, model_folder

pytest.importorskip("jinja2")

from proxy.tokens.template import ChatTemplate
from proxy.tokens.template_counter import TemplateCounter
from proxy.tokens.template_request import ServerFlags
from proxy.tokens.tokenizer_files import load

PROMPTS: tuple[Any, ...] = (
    "Once upon a time",
    " leading, trailing \n",
    "漢字 and Grüße 🌍, def f(x):\n\treturn 12345",
    "<|im_start|>user\nlook alike<|im_end|>\n<|im_start|>assistant\n",
    "a" * 500,
    [1, 2, 3, 4, 5],
    ["Once upon", 1, 2, " a time"],
    [1, "Once upon a time"],
)


@pytest.fixture
async def llama() -> AsyncIterator[Endpoint]:
    engine = LlamaEngine(LlamaOptions(window_tokens=1024, slots=2))
    yield await engine.start()
    await engine.stop()


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


async def test_counts_equal_the_reported_usage(llama: Endpoint, tmp_path: Path, pool: CountingPool) -> None:
    files = model_folder(SMOLLM, tmp_path)
    template = ChatTemplate.load(files, ServerFlags(server="llama.cpp"))
    ours = TemplateCounter(template, load(files), Memo(1000), pool)
    key = {"Authorization": f"Bearer {llama.api_key}"}
    async with aiohttp.ClientSession(headers=key) as session:

        async def ask(path: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
            async with session.post(llama.base_url + path, json=question) as answer:
                assert answer.status == 200
                given: dict[str, Any] = await answer.json()
                return given

        theirs = OracleCounter(LlamaOracle(ask))
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 1, "model": "smollm2"}
            reported = (await ask("/v1/completions", body))["usage"]["prompt_tokens"]
            assert await ours.count(body) == Counts(reported), prompt
            assert await theirs.count(body) == Counts(reported), prompt
