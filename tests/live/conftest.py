"""The real thing: the proxy as `chatfuse serve` starts it without a config, with the embedded model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import proxy_fixture
from tests.proxy_fixture import Proxy

ADMIN = "[admin]\nport = 0\n"


@pytest.fixture
async def smollm(tmp_path: Path) -> AsyncIterator[Proxy]:
    """No key, no config but for the port of the admin listener."""
    proxy = await proxy_fixture.start(tmp_path, ADMIN, embedded=True)
    yield proxy
    if not proxy.task.done():
        await proxy.stop()
