"""A history that is too long, in the dialects that have items: what stays is valid and keeps its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import pytest

from proxy.dialects.paths import DIALECTS
from proxy.history.validity import problems
from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream, json_answer
from tests.proxy_fixture import openai_config
from tests.wire.dialects import MESSAGE, RESPONSE

TRIMS = 'context = { strategy = "trim", budget_tokens = 600 }'
LONG = "word " * 60


def responses(turns: int) -> list[Any]:
    items: list[Any] = [{"role": "developer", "content": "Be brief."}]
    for turn in range(turns):
        items += [
            {"role": "user", "content": [{"type": "input_text", "text": f"{turn} {LONG}"}]},
            {"type": "reasoning", "id": f"rs_{turn}", "summary": []},
            {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": LONG},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        ]
    return [*items, {"role": "user", "content": "And?"}]


def messages(turns: int) -> list[Any]:
    items: list[Any] = []
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": LONG}
        items += [
            {"role": "user", "content": [{"type": "text", "text": f"{turn} {LONG}"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
            {"role": "assistant", "content": "Yes."},
        ]
    return [*items, {"role": "user", "content": "And?"}]


@pytest.mark.parametrize(
    ("path", "key", "head", "items", "answer"),
    [
        ("/v1/responses", "input", 1, responses(8), RESPONSE),
        ("/v1/messages", "messages", 0, messages(8), MESSAGE),
    ],
    ids=["responses", "messages"],
)
async def test_whole_units_go_and_the_rest_keeps_its_bytes(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    path: str,
    key: str,
    head: int,
    items: Sequence[Any],
    answer: Mapping[str, Any],
) -> None:
    upstream.default = json_answer(answer)
    proxy = await start_proxy(openai_config(upstream.base_url, model=TRIMS))
    # Spaced as no serializer of ours would write it.
    written = [json.dumps(item, separators=(" , ", " :  ")) for item in items]
    body = f'{{ "{key}" :[{" ,".join(written)} ], "model":"gpt-4o" }}'.encode()
    async with session.post(proxy.url + path, data=body) as got:
        assert got.status == 200, await got.text()
        assert int(got.headers["x-chatfuse-dropped-turns"]) > 0
        assert int(got.headers["x-chatfuse-tokens-in"]) <= 600
    sent = upstream.received[0].body.decode()
    left = json.loads(sent)[key]
    first = len(items) - len(left) + head
    assert left == [*items[:head], *items[first:]]
    assert all(each in sent for each in [*written[:head], *written[first:]])
    assert problems(DIALECTS[path].parse(sent.encode()).messages) == []
    assert left[head]["role"] == "user"
