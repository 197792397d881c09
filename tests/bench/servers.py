"""What the benchmark runs beside chatfuse: a fast upstream, and the minimal aiohttp proxy to compare with.

`python -m tests.bench.servers upstream PORT` or `minimal PORT UPSTREAM_PORT`.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import orjson
import uvloop
from aiohttp import web

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(ANSWER),
    ANSWER,
)


class Upstream(asyncio.Protocol):
    """Reads whole requests and answers each with the same bytes."""

    def __init__(self) -> None:
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self._pending) < end + 4 + length:
                return
            self._pending = self._pending[end + 4 + length :]
            self._transport.write(REPLY)  # type: ignore[attr-defined]


async def upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


def minimal(port: int, upstream_port: int) -> None:
    """Application, router, one ClientSession, orjson parse, uvloop: it passes through and does nothing else."""
    session = web.AppKey("session", aiohttp.ClientSession)

    async def handler(request: web.Request) -> web.Response:
        body = await request.read()
        orjson.loads(body)
        url = f"http://127.0.0.1:{upstream_port}/v1/chat/completions"
        headers = {"Content-Type": "application/json"}
        async with request.app[session].post(url, data=body, headers=headers) as reply:
            return web.Response(status=reply.status, body=await reply.read(), headers=headers)

    async def make() -> web.Application:
        app = web.Application(client_max_size=2**30)
        app[session] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app.router.add_post("/v1/chat/completions", handler)
        return app

    uvloop.install()
    web.run_app(make(), host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        uvloop.run(upstream(int(sys.argv[2])))
    else:
        minimal(int(sys.argv[2]), int(sys.argv[3]))
