"""OpenAI's own SDK for Node against the proxy: `openai_node/check.mjs` runs it and prints what it saw."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import (
    DONE,
    USAGE_EVENT,
    Peer,
    Received,
    ScriptedUpstream,
    completion,
    delta,
    json_answer,
    sse_answer,
)
from tests.proxy_fixture import openai_config
from tests.wire.scripts import CALL, MODELS, refused

pytestmark = pytest.mark.node
HERE = Path(__file__).parent / "openai_node"
INSTALL_S = 240
RUN_S = 120


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with its SDK installed beside it."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("openai_node")
    for name in ("package.json", "check.mjs"):
        shutil.copy(HERE / name, folder)
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if installed.returncode:
        reason = f"npm install failed: {installed.stderr[-500:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


async def by_first_message(request: Received, peer: Peer) -> None:
    """The scripted upstream's answer, which the script asks for by its first message."""
    if request.path == "/v1/models":
        return await json_answer(MODELS)(request, peer)
    messages = request.json["messages"]
    asked = str(messages[0]["content"])
    if asked.isdigit():
        return await refused(int(asked), f"code_{asked}")(request, peer)
    if asked == "stream":
        return await sse_answer([delta("Hel"), delta("lo!"), USAGE_EVENT, DONE])(request, peer)
    if asked == "break":
        return await sse_answer([delta("Hel")], end=False)(request, peer)
    if asked == "hang up":
        return peer.reset()
    if asked == "tools" and len(messages) == 1:
        return await json_answer(CALL)(request, peer)
    return await json_answer(completion())(request, peer)


async def test_the_node_sdk(start_proxy: StartProxy, upstream: ScriptedUpstream, node_folder: Path) -> None:
    upstream.default = by_first_message
    proxy = await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 2000"))
    process = await asyncio.create_subprocess_exec(
        "node", "check.mjs", proxy.base_url, cwd=node_folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(RUN_S):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    seen: dict[str, Any] = json.loads(stdout)

    tokens = seen["create"].pop("tokensIn")
    assert tokens > 0
    assert seen["create"] == {"text": "Hello!", "usage": 9, "model": "gpt-4o"}
    assert seen["stream"] == {"text": "Hello!", "usage": []}
    assert seen["streamWithUsage"] == {"text": "Hello!", "usage": [11]}
    assert seen["surrogate"] == "Hello!"
    assert seen["tools"] == {"name": "weather", "arguments": '{"city": "Paris"}', "text": "Hello!"}
    assert seen["models"] == ["gpt-4o", "gpt-4o-mini"]
    upstreams_own = {
        str(status): {"class": name, "status": status, "code": f"code_{status}"}
        for status, name in (
            (400, "BadRequestError"),
            (401, "AuthenticationError"),
            (403, "PermissionDeniedError"),
            (404, "NotFoundError"),
            (409, "ConflictError"),
            (422, "UnprocessableEntityError"),
            (429, "RateLimitError"),
            (500, "InternalServerError"),
        )
    }
    assert seen["errors"] == {
        **upstreams_own,
        "hang up": {"class": "InternalServerError", "status": 502, "code": "upstream_error"},
        "long lo": {"class": "UnprocessableEntityError", "status": 422, "code": "context_length_exceeded"},
        "shape": {"class": "BadRequestError", "status": 400, "code": "invalid_request"},
    }
    assert seen["broken"] == {"class": "APIError", "code": "upstream_error"}
    assert all(request.header("authorization") == "Bearer sk-client" for request in upstream.received)
