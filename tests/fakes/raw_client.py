"""A client that speaks HTTP/1.1 by hand: for requests and endings that no library would send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass


@dataclass
class RawAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: bytes, headers: str = "") -> None:
        await self.send(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{headers}\r\n".encode()
            + body
        )

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = [
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)
        ]
        return int(first.split(" ")[1]), headers

    async def answer(self) -> RawAnswer:
        status, headers = await self.head()
        return RawAnswer(status, headers, await self._body(headers))

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def _body(self, headers: list[tuple[str, str]]) -> bytes:
        found = {name.lower(): value for name, value in headers}
        if found.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return b"".join(parts)
        if "content-length" in found:
            return await self.reader.readexactly(int(found["content-length"]))
        return await self.reader.read()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
