"""CPU per request of chatfuse against the minimal aiohttp proxy, alternating in one run.

`python -m tests.bench.overhead`. Trust the ratios: absolute figures move with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import uvloop

ROOT = Path(__file__).parents[2]
CONNECTIONS = 8
CONFIG = """
[admin]
port = 0
[[backends]]
name = "up"
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
[[models]]
name = "*"
targets = [{{ backend = "up" }}]
"""


def small() -> bytes:
    """Three messages, about 800 bytes."""
    texts = ("You are a helpful assistant. " * 8, "Tell me about the weather. " * 8, "And then some. " * 12)
    roles = ("system", "user", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return json.dumps({"model": "gpt-4o", "temperature": 0.7, "messages": messages}).encode()


def long() -> bytes:
    """Sixty messages, about 48 KB, all of them seen before after the first request."""
    messages = [{"role": "system", "content": "Be brief."}] + [
        {
            "role": ("user", "assistant")[i % 2],
            "content": f"{i} " + "lorem ipsum dolor sit amet consectetur " * 20,
        }
        for i in range(59)
    ]
    return json.dumps({"model": "gpt-4o", "messages": messages}).encode()


async def load(port: int, body: bytes, requests: int) -> None:
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer sk-bench\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )

    async def connection(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(number):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        writer.close()

    await asyncio.gather(*(connection(requests // CONNECTIONS) for _ in range(CONNECTIONS)))


async def cpu_us(process: psutil.Process, port: int, body: bytes, requests: int) -> float:
    before = sum(process.cpu_times()[:2])
    await load(port, body, requests)
    return (sum(process.cpu_times()[:2]) - before) / requests * 1e6


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def until_open(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


async def measure(requests: int, rounds: int) -> None:
    up, plain, ours = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "c.toml")
        config.write_text(CONFIG.format(port=up))
        commands = (
            ["tests.bench.servers", "upstream", str(up)],
            ["tests.bench.servers", "minimal", str(plain), str(up)],
            ["proxy", "serve", "--config", str(config), "--port", str(ours)],
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command in commands
        ]
        try:
            for port in (up, plain, ours):
                await until_open(port)
            servers = {"minimal": (processes[1].pid, plain), "chatfuse": (processes[2].pid, ours)}
            for name, body in (("small", small()), ("long", long())):
                taken: dict[str, list[float]] = {server: [] for server in servers}
                for _, port in servers.values():
                    await load(port, body, 400)
                for _ in range(rounds):
                    for server, (pid, port) in servers.items():
                        taken[server].append(await cpu_us(psutil.Process(pid), port, body, requests))
                minimal, chatfuse = (statistics.median(taken[server]) for server in servers)
                ratios = [b / a for a, b in zip(taken["minimal"], taken["chatfuse"], strict=True)]
                print(
                    f"{name:6} {len(body):6} B  minimal {minimal:5.0f} us  chatfuse {chatfuse:5.0f} us  "
                    f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                )
            print(f"RSS of chatfuse: {psutil.Process(processes[2].pid).memory_info().rss // 2**20} MiB")
        finally:
            for process in processes:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    uvloop.run(measure(options.requests, options.rounds))
