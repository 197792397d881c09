"""The real things: the proxy as `chatfuse serve` starts it without a config, and in front of a real vLLM."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import proxy_fixture
from tests.conftest import StartProxy
from tests.engines import vllm_install, vllm_server
from tests.engines.vllm_server import VllmServer
from tests.proxy_fixture import Proxy

ADMIN = "[admin]\nport = 0\n"

IN_FRONT_OF_VLLM = """
[admin]
port = 0
[[backends]]
name = "vllm"
kind = "openai"
base_url = "{url}/v1"
auth = "none"
[[models]]
name = "smollm2"
targets = [{{ backend = "vllm" }}]
tokenizer = "{model}"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m "not vllm"` leaves out what needs the engine."""
    for item in items:
        if "vllm" in getattr(item, "fixturenames", ()):
            item.add_marker("vllm")


@pytest.fixture
async def smollm(tmp_path: Path) -> AsyncIterator[Proxy]:
    """No key, no config but for the port of the admin listener."""
    proxy = await proxy_fixture.start(tmp_path, ADMIN, embedded=True)
    yield proxy
    if not proxy.task.done():
        await proxy.stop()


@pytest.fixture(scope="package")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One real vLLM for all tests here. Where it cannot be installed they are skipped, but not in CI."""
    try:
        vllm_install.require()
    except vllm_install.NotInstalled as missing:
        if os.environ.get("CHATFUSE_REQUIRE_VLLM"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    server = vllm_server.start(tmp_path_factory.mktemp("vllm") / "log")
    try:
        vllm_server.wait_until_ready(server)
        yield server
    finally:
        vllm_server.stop(server)


@pytest.fixture
async def vllm_proxy(vllm: VllmServer, start_proxy: StartProxy) -> Proxy:
    """The proxy in front of it, which counts for itself."""
    return await start_proxy(IN_FRONT_OF_VLLM.format(url=vllm.url, model=vllm.model))
