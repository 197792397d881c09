"""Plain curl, as the README shows it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import DONE, ScriptedUpstream, delta, json_answer, sse_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat
from tests.wire.scripts import MODELS

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
BOUND_S = 60.0


async def curl(*arguments: str) -> tuple[dict[str, str], bytes]:
    """The last answer's head (its status under "status") and the body."""
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-i", "--max-time", "30", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(BOUND_S):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    head, _, body = stdout.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {**fields, "status": first.split()[1]}, body


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


def post(proxy: Proxy, data: str, *more: str) -> tuple[str, ...]:
    return (f"{proxy.base_url}/chat/completions", "-H", "Content-Type: application/json", "-d", data, *more)


async def test_a_chat(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head, body = await curl(*post(proxy, chat().decode(), "-H", "Authorization: Bearer sk-client"))
    assert head["status"] == "200"
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hello!"
    assert head["x-chatfuse-backend"] == "up"
    assert "count;dur=" in head["server-timing"]
    assert upstream.received[0].header("authorization") == "Bearer sk-client"


async def test_a_stream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.then(sse_answer([delta("Hel"), delta("lo!"), DONE]))
    head, body = await curl("-N", *post(proxy, chat(stream=True).decode()))
    assert head["content-type"].startswith("text/event-stream")
    assert body == delta("Hel") + delta("lo!") + DONE


async def test_a_large_body_is_not_held_back(
    proxy: Proxy, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    # Over 1 MiB curl sends `Expect: 100-continue`, and waits; an answer in time shows in the trace.
    body = chat("word " * 300_000)
    file, trace = tmp_path / "body.json", tmp_path / "trace"
    file.write_bytes(body)
    head, _ = await curl(
        *post(proxy, f"@{file}", "--expect100-timeout", "20", "-H", "Expect: 100-continue"),
        "--trace-ascii",
        str(trace),
    )
    assert head["status"] == "200"
    assert upstream.received[0].body == body
    assert "HTTP/1.1 100 Continue" in trace.read_text()


async def test_a_wrong_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    head, body = await curl(*post(proxy, "{not json}"))
    assert head["status"] == "400"
    assert json.loads(body)["error"]["code"] == "invalid_json"
    assert upstream.received == []


async def test_the_other_addresses(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.default = json_answer(MODELS)
    for path, method in (
        ("/healthz", "-XGET"),
        ("/readyz", "-XGET"),
        ("/v1/models", "-XGET"),
        ("/healthz", "-I"),
    ):
        head, _ = await curl(method, f"{proxy.url}{path}")
        assert head["status"] == "200"
    head, body = await curl("-d", chat().decode(), f"{proxy.url}/chatfuse/explain")
    assert head["status"] == "200"
    assert json.loads(body)["tokens"] > 0
