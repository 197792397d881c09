"""Read the body as what its path takes."""

from __future__ import annotations

from backends.base import Headers
from proxy.config import Server
from proxy.dialects import body
from proxy.dialects.paths import spoken_at
from proxy.exchange import Exchange


class Parse:
    def __init__(self, server: Server) -> None:
        self._max_body_bytes = server.max_body_bytes

    async def __call__(self, it: Exchange) -> None:
        codings = content_codings(it.headers)
        raw = body.unpack(it.body, codings, self._max_body_bytes) if codings else it.body
        it.prompt = spoken_at(it.path.partition("?")[0]).parse(raw)


def content_codings(headers: Headers) -> list[str]:
    """The codings of a body in the order they were applied (RFC 9110 section 8.4), `identity` left out."""
    return [
        coding
        for name, value in headers
        if name.lower() == "content-encoding"
        for part in value.split(",")
        if (coding := part.strip().lower()) and coding != "identity"
    ]
