"""One HTTP call, as every handler gets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from backends.base import Headers
from proxy.exchange import Exchange
from proxy.handlers.incoming import read_body
from proxy.handlers.outgoing import ClientSide, describe
from proxy.runtime import Live, Runtime


@dataclass(slots=True)
class Call:
    request: web.BaseRequest
    client: ClientSide
    live: Live
    runtime: Runtime
    id: str
    path: str
    headers: Headers
    peer: str
    arrived: float
    fields: list[tuple[str, str]] = field(init=False)
    """What an error answer says of itself; grows as more is known."""

    def __post_init__(self) -> None:
        self.fields = [("x-request-id", self.id)]

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    async def read_body(self) -> bytes:
        server = self.runtime.config.server
        return await read_body(self.request, server.max_body_bytes, server.body_idle_s)

    def exchange(self) -> Exchange:
        return Exchange(self.id, self.path, self.headers, self.peer, self.arrived)

    def describe(self, exchange: Exchange) -> None:
        """Let an error answer say what is known of the exchange."""
        self.fields[:] = describe(exchange, exchange.attempts[-1] if exchange.attempts else None)

    async def answer_json(self, status: int, body: bytes) -> None:
        headers = [("Content-Type", "application/json"), *self.fields]
        await self.client.answer(status, "", headers, body)
