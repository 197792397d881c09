"""The embedded model as an upstream: llama.cpp's own server in a child process, spoken to like any other."""

from __future__ import annotations

import asyncio

from yarl import URL

from backends.base import Oracle, Readiness, Timeouts, UpstreamRequest
from backends.endpoint import Endpoint
from backends.errors import BackendError
from backends.http import HttpBackend, HttpOptions
from backends.http_reply import take
from backends.oracle import LlamaOracle, asker

_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_HEALTH_S = 1.0


class EmbeddedBackend(HttpBackend):
    """It also counts prompts, with the model's own template and tokenizer."""

    def __init__(self, name: str, endpoint: Endpoint, timeouts: Timeouts) -> None:
        super().__init__(
            HttpOptions(
                name=name,
                base_url=f"{endpoint.base_url}/v1",
                auth="config",
                key=endpoint.api_key,
                timeouts=timeouts,
                # llama.cpp closes a connection after a streamed reply without saying so.
                keepalive_s=0.0,
            )
        )
        self._root_url = endpoint.base_url
        self._oracle = LlamaOracle(asker(self))
        self._window_tokens = endpoint.window_tokens

    def url(self, path: str) -> URL:
        return URL(self._root_url + path, encoded=True)

    def window_tokens(self, model: str) -> int | None:
        return self._window_tokens

    def oracle(self, model: str) -> Oracle:
        return self._oracle

    async def readiness(self) -> Readiness:
        """Asked, not guessed: the engine is ours and may be restarting."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                reply = await self.send(UpstreamRequest("GET", "/health", ()))
                await take(reply, _MAX_ANSWER_BYTES)
        except BackendError as error:
            return Readiness(False, str(error))
        except TimeoutError:
            return Readiness(False, f"the engine did not answer in {_HEALTH_S:g} s")
        return Readiness(reply.status == 200, "" if reply.status == 200 else "the model is being loaded")
