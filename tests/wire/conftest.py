"""What several of the tests on the wire use: a client, and a proxy that must go on serving well."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from proxy.dialects.messages import ERROR_TYPES
from proxy.log import JsonFormatter
from tests.conftest import StartProxy
from tests.fakes.raw_client import RawAnswer, RawClient
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.requests import chat

Connect = Callable[[int], Awaitable[RawClient]]
KEY = "sk-of-the-client-0123456789"
OUR_KEY = "the-key-that-is-ours"
BOUND_S = 30.0
PATH = "/v1/chat/completions"
SETTINGS = """
[server]
max_body_bytes = 8_000_000
body_idle_s = 0.3
[log]
level = "debug"
"""


class _Lines(logging.Handler):
    """Log lines as they would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@dataclass
class Served:
    proxy: Proxy
    upstream: ScriptedUpstream
    connect: Connect
    answers: list[RawAnswer] = field(default_factory=list)

    async def send(self, data: bytes) -> RawAnswer:
        """Bytes of a whole request, on a connection of its own."""
        client = await self.connect(self.proxy.port)
        started = time.perf_counter()
        async with asyncio.timeout(BOUND_S):
            await client.send(data)
            answer = await client.answer()
        assert time.perf_counter() - started < BOUND_S / 2
        self.answers.append(answer)
        return answer

    async def ask(self, body: bytes, headers: str = "", path: str = PATH) -> RawAnswer:
        return await self.send(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
            + body
        )

    async def refuses(
        self, body: bytes, status: int, code: str, says: str, headers: str = "", path: str = PATH
    ) -> dict[str, Any]:
        error = refusal(await self.ask(body, headers, path), status, code, says)
        assert self.upstream.received == []
        return error

    async def passes(self, body: bytes, headers: str = "") -> RawAnswer:
        """Goes on to the upstream, byte for byte."""
        answer = await self.ask(body, headers)
        assert answer.status == 200, answer.body
        assert self.upstream.received[-1].body == body
        return answer


def refusal(answer: RawAnswer, status: int, code: str, says: str = "") -> dict[str, Any]:
    assert answer.status == status, answer.body
    assert answer.header(
        "content-type",
    ) in ("application/json", "application/json; charset=utf-8")
    body = json.loads(answer.body)
    error: dict[str, Any] = body["error"]
    if "type" in body:
        # Anthropic's shape has no codes.
        assert body == {"type": "error", "error": {"type": ERROR_TYPES[status], "message": error["message"]}}
        assert says in error["message"]
        return error
    assert set(body) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert says in error["message"]
    return error


@pytest.fixture
async def served(start_proxy: StartProxy, upstream: ScriptedUpstream, raw: Connect) -> AsyncIterator[Served]:
    """A proxy, of which it is checked afterwards that it still serves and that no key got out."""
    proxy = await start_proxy(openai_config(upstream.base_url, SETTINGS))
    log = _Lines()
    logging.getLogger().addHandler(log)
    served = Served(proxy, upstream, raw)
    try:
        yield served
        before = len(upstream.received)
        assert (await served.ask(chat("still there?"))).status == 200
        assert upstream.received[before].header("authorization") == f"Bearer {KEY}"
    finally:
        logging.getLogger().removeHandler(log)
    for answer in served.answers:
        assert b"Traceback" not in answer.body
        assert b'File "' not in answer.body
        assert KEY.encode() not in answer.body
    for line in log.lines:
        assert KEY not in line
        assert json.loads(line)["level"] != "error", line


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that takes bodies as they come."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session
