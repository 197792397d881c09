"""A real vLLM behind the proxy: answered, and counted here as it counts."""

from __future__ import annotations

import aiohttp

from tests.proxy_fixture import Proxy


async def test_a_question_gets_a_real_answer_and_its_tokens_are_counted_exactly(vllm_proxy: Proxy) -> None:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{vllm_proxy.base_url}/chat/completions", json=body) as answer,
    ):
        reply = await answer.json()
        assert answer.status == 200, reply
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert int(answer.headers["x-chatfuse-tokens-in"]) == reply["usage"]["prompt_tokens"]
