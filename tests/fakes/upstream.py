"""A scripted upstream on a real socket, for the faults that real servers cannot be made to show.

It speaks HTTP/1.1 by hand, so that a script decides about every byte, and keeps what it received as it came.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Received:
    """One request, as it came over the wire."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Peer:
    """The connection to whoever asked."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    keep_open: bool = True

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        self.keep_open = False
        self.writer.transport.abort()

    async def wait_gone(self) -> None:
        """Until the other side has closed."""
        while True:
            try:
                if not await self.reader.read(65536):
                    break
            except ConnectionError:
                break
        self.gone.set()


Answer = Callable[[Received, Peer], Awaitable[None]]


def json_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return bytes_answer(json.dumps(value).encode(), "application/json", status, headers)


def bytes_answer(
    body: bytes, content_type: str, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    async def answer(_: Received, peer: Peer) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n{extra}"
        await peer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    return answer


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse_answer(chunks: Sequence[bytes], *, end: bool = True) -> Answer:
    """A stream given in exactly these chunks, each a write of its own; without `end` it breaks off."""

    async def answer(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        for chunk in chunks:
            await peer.chunk(chunk)
            await asyncio.sleep(0)
        if end:
            await peer.write(b"0\r\n\r\n")
        else:
            peer.keep_open = False

    return answer


def paused_answer(go: asyncio.Event, before: Sequence[bytes], after: Sequence[bytes]) -> Answer:
    """A stream that halts after its first chunks until `go` is set."""

    async def answer(_: Received, peer: Peer) -> None:
        await peer.write(SSE_HEAD)
        for chunk in before:
            await peer.chunk(chunk)
        await go.wait()
        for chunk in after:
            await peer.chunk(chunk)
        await peer.write(b"0\r\n\r\n")

    return answer


def completion(text: str = "Hello!", prompt_tokens: int = 9, model: str = "gpt-4o") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2},
    }


def delta(text: str) -> bytes:
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4o",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


USAGE_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
)
DONE = b"data: [DONE]\n\n"


class ScriptedUpstream:
    """Answers each request with the next script, and with `default` when there is none left.

    What the proxy asks for itself, in the background, is kept apart: `asked`, answered by `tells`, each on a
    connection that counts for nothing. By default it tells nothing.
    """

    def __init__(self, default: Answer | None = None, port: int = 0) -> None:
        self._port = port
        self.received: list[Received] = []
        self.asked: list[Received] = []
        self.tells: Answer = json_answer({}, 404, [("Connection", "close")])
        self.scripts: deque[Answer] = deque()
        self.default: Answer = default or json_answer(completion())
        self.connections = 0
        self.peers: list[Peer] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> ScriptedUpstream:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=2**26)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def then(self, *answers: Answer) -> None:
        self.scripts.extend(answers)

    async def arrival(self, number: int = 1) -> Received:
        """The n-th request, awaited."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= number)
        return self.received[number - 1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            while peer.keep_open and (request := await read_request(reader)) is not None:
                if request.header("user-agent") == "chatfuse":
                    self.connections -= 1
                    self.peers.remove(peer)
                    self.asked.append(request)
                    await self.tells(request, peer)
                    break
                async with self._arrived:
                    self.received.append(request)
                    self._arrived.notify_all()
                answer = self.scripts.popleft() if self.scripts else self.default
                await answer(request, peer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has left, or the test has ended
        finally:
            peer.gone.set()
            self._tasks.discard(task)
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]
    found = {name.lower(): value for name, value in headers}
    body = b""
    if "content-length" in found:
        body = await reader.readexactly(int(found["content-length"]))
    elif found.get("transfer-encoding") == "chunked":
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        body = b"".join(parts)
    return Received(method, path, headers, body)
