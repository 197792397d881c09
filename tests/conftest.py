"""Fixtures for everything: the event loop that production uses, the proxy, a scripted upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest
import uvloop

from tests import proxy_fixture
from tests.fakes.raw_client import RawClient
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import Proxy


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], object]]:
    """Tests run on the loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        yield server


class StartProxy(Protocol):
    async def __call__(
        self, text: str, environ: Mapping[str, str] | None = None, *, embedded: bool = False
    ) -> Proxy: ...


@pytest.fixture
async def start_proxy(tmp_path: Path) -> AsyncIterator[StartProxy]:
    """Starts proxies, and stops those that the test did not stop."""
    started: list[Proxy] = []

    async def start(text: str, environ: Mapping[str, str] | None = None, *, embedded: bool = False) -> Proxy:
        folder = tmp_path / f"proxy{len(started)}"
        folder.mkdir()
        proxy = await proxy_fixture.start(folder, text, environ, embedded=embedded)
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        if not proxy.task.done():
            await proxy.stop()


@pytest.fixture
async def raw() -> AsyncIterator[Callable[[int], Awaitable[RawClient]]]:
    """Opens raw client connections, and closes them."""
    clients: list[RawClient] = []

    async def connect(port: int) -> RawClient:
        client = await RawClient.connect(port)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.close()
