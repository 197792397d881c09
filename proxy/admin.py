"""The operators' listener: `/metrics`, summed over the workers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from proxy.config import Admin
from proxy.errors import error_body
from proxy.telemetry.snapshot import Snapshot, SnapshotCollector

log = logging.getLogger(__name__)


class AdminHandler:
    """Implements `proxy.listener.Handler`."""

    def __init__(self, settings: Admin, snapshot: Callable[[], Awaitable[Snapshot]]) -> None:
        self._token = settings.token.get_secret_value().encode() if settings.token is not None else None
        self._snapshot = snapshot

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._allowed(request):
            body = error_body("the admin token is required", "authentication_error", None, "invalid_api_key")
            return web.Response(
                status=401, body=body, content_type="application/json", headers={"WWW-Authenticate": "Bearer"}
            )
        if request.method in ("GET", "HEAD") and request.path == "/metrics":
            return await self._metrics(request)
        if request.method in ("GET", "HEAD") and request.path == "/healthz":
            return web.Response(body=b'{"status":"ok"}', content_type="application/json")
        return web.Response(
            status=404,
            body=error_body(
                "the admin listener has /metrics and /healthz", "invalid_request_error", None, "not_found"
            ),
            content_type="application/json",
        )

    def _allowed(self, request: web.BaseRequest) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "surrogateescape"), self._token
        )

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(await self._snapshot()))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})
