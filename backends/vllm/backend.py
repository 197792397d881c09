"""vLLM as an upstream: an engine of ours beside the proxy, or one that runs elsewhere and is joined."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from backends.base import Readiness, Timeouts, UpstreamRequest
from backends.endpoint import Endpoint
from backends.engine_state import StateReader
from backends.errors import BackendError, ConnectFailed, Interrupted, NotReady
from backends.http import HttpOptions
from backends.http_reply import HttpReply, take
from backends.kv_state import KvState
from backends.openai import OpenAIBackend
from backends.oracle import OWN_AGENT
from backends.vllm import gauges

RETRY_AFTER_S = 5
"""A small engine is back after half a minute, a large one after minutes; a client may come and ask."""
_LOOK_S = 0.1
_HEALTH_S = 1.0
_SAMPLE_EVERY_S = 2.0
_SAMPLE_S = 2.0
_MAX_METRICS_BYTES = 16 * 1024 * 1024


class VllmBackend(OpenAIBackend):
    """A vLLM that runs. It also says how full its KV memory is."""

    def __init__(self, options: HttpOptions) -> None:
        super().__init__(options)
        self._sampled_at = float("-inf")
        self._kv: KvState | None = None

    async def sample(self) -> KvState | None:
        """Asked every two seconds at most; what it does not answer is unknown, not as it was."""
        now = time.monotonic()
        if now - self._sampled_at >= _SAMPLE_EVERY_S:
            self._sampled_at = now
            try:
                async with asyncio.timeout(_SAMPLE_S):
                    self._kv = gauges.read(await self._get("/metrics"))
            except (BackendError, TimeoutError):
                self._kv = None
        return self._kv

    async def _get(self, path: str) -> str:
        """Raises BackendError, also for an answer that is no 200."""
        reply = await self.send(UpstreamRequest("GET", path, [OWN_AGENT]))
        body = await take(reply, _MAX_METRICS_BYTES)
        if reply.status != 200:
            raise BackendError(f"backend {self.name!r} answered {path} with {reply.status}")
        return body.decode(errors="replace")


class _EngineReply(HttpReply):
    """A reply that breaks off is an engine that has ended: it comes back."""

    __slots__ = ()

    async def read_some(self) -> bytes:
        try:
            return await super().read_some()
        except Interrupted as error:
            raise NotReady(f"{error}: its engine has ended", RETRY_AFTER_S) from None


class OwnVllmBackend(VllmBackend):
    """The engine beside us. While it is not ready nothing is sent to it, so that requests fail over at once."""

    reply_class = _EngineReply

    def __init__(self, name: str, endpoint: Endpoint, timeouts: Timeouts, ask_usage: str) -> None:
        super().__init__(
            HttpOptions(
                name=name,
                base_url=endpoint.base_url,
                auth="config",
                key=endpoint.api_key,
                timeouts=timeouts,
                ask_usage=ask_usage,
                socket_path=endpoint.socket_path,
            )
        )
        assert endpoint.state_folder is not None
        self._state = StateReader(endpoint.state_folder)

    async def send(self, request: UpstreamRequest) -> HttpReply:
        if not self._state.ready:
            self._lost.set()
            raise self._not_ready()
        try:
            return await super().send(request)
        except (ConnectFailed, Interrupted):
            raise self._not_ready() from None

    async def learn(self) -> bool:
        return await super().learn() if self._state.ready else False

    async def lost(self, within_s: float) -> None:
        """Also returns when the engine becomes ready: no request should find its window unknown for long."""
        if self._state.ready:
            await super().lost(within_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._state.ready:  # noqa: ASYNC110 (another process writes it)
                    await asyncio.sleep(_LOOK_S)

    async def readiness(self) -> Readiness:
        """Asked, not guessed: an engine that hangs does not answer this either."""
        if not self._state.ready:
            return Readiness(False, self._state.text)
        try:
            async with asyncio.timeout(_HEALTH_S):
                await self._get("/health")
        except BackendError as error:
            return Readiness(False, str(error))
        except TimeoutError:
            return Readiness(False, f"the engine did not answer in {_HEALTH_S:g} s")
        return Readiness(True)

    def _not_ready(self) -> NotReady:
        text = "the engine has ended" if self._state.ready else self._state.text
        return NotReady(f"backend {self.name!r} is not ready: {text}", RETRY_AFTER_S)
