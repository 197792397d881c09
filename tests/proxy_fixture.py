"""The proxy under test, started as users start it: `server.run` on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from proxy import server
from proxy.config_source import Source

START_S = 60.0


@dataclass
class Proxy:
    running: server.Running
    task: asyncio.Task[int]
    config: Path

    @property
    def port(self) -> int:
        return self.running.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, by its name with labels as exposed."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.running.admin_port}/metrics") as answer,
        ):
            assert answer.status == 200
            lines = (await answer.text()).splitlines()
        return {
            name: float(value)
            for name, _, value in (
                line.rpartition(" ") for line in lines if line and not line.startswith("#")
            )
        }

    async def stop(self) -> int:
        self.running.stop.set()
        return await self.task


async def start(
    folder: Path, text: str, environ: Mapping[str, str] | None = None, *, embedded: bool = False
) -> Proxy:
    """Returns when the proxy serves; a start that fails raises what it failed with."""
    config = folder / "chatfuse.toml"
    config.write_text(text)
    source = Source(config, {"CHATFUSE_PORT": "0", **(environ or {})}, embedded)
    ready: asyncio.Future[server.Running] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(source, on_ready=ready.set_result, signals=False))
    async with asyncio.timeout(START_S):
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    return Proxy(ready.result(), task, config)


def openai_config(base_url: str, extra: str = "", model: str = "", backend: str = "") -> str:
    """A config with one scripted upstream behind every model name."""
    return f"""
[admin]
port = 0
{extra}
[[backends]]
name = "up"
kind = "openai"
base_url = "{base_url}"
{backend}
[[models]]
name = "*"
targets = [{{ backend = "up" }}]
{model}
"""
