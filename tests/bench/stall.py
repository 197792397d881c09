"""What small requests wait while 16 clients send prompts of 100,000 tokens each: the event loop's stall.

`python -m tests.bench.stall`. One worker, real sockets. A probe sends a small request every few milliseconds,
first alone, then while the clients, a process of their own, send prompts that were never seen before; both
within a minute. Compare these two: absolute figures move with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from tests.bench.overhead import ROOT, free_port, small, until_open

CLIENTS = 16
TOKENS = 100_000
EVERY_S = 0.005
ALONE_S = 5.0

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

CONFIG = """
[admin]
port = 0
[server]
workers = 1
[[backends]]
name = "up"
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
[[models]]
name = "gpt-4o"
targets = [{{ backend = "up" }}]
window = 1000000
[[models]]
name = "local"
targets = [{{ backend = "up" }}]
tokenizer = "{files}"
window = 1000000
"""

# One token each, with the space before them, in the encodings and vocabularies used here.
_COMMON = """
the of and to in is that for was on are with as his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then
she many some so these would other into has more her two like him see time could no make than first
been its who now people my made over did down only way find use may water long little very after
words called just where most know get through back much before go good new write our used me man too
any day same right look think also around another came come work three word must because does part
even place well such here take why things help put years different away again off went old number
great tell men say small every found still between name should home big give air line set own under
read last never us left end along while might next sound below saw something thought both few those
always looked show large often together asked house world going want school important until form
food keep children feet land side without boy once animals life enough took sometimes four head
above kind began almost live page got earth need far hand high year mother light parts country
father let night following picture being study second eyes soon times story boys since white days
ever paper hard near
"""
WORDS = _COMMON.split()


def prompt(model: str, seed: int) -> bytes:
    """A body of 100,000 tokens that nobody has seen, in a few long messages."""
    dice = random.Random(seed)
    texts = (" ".join(dice.choices(WORDS, k=TOKENS // 4)) for _ in range(4))
    messages = [{"role": "user", "content": f"{seed} {text}"} for text in texts]
    return json.dumps({"model": model, "messages": messages}).encode()


async def ask(port: int, bodies: Iterable[bytes], taken_s: list[float], pause_s: float = 0.0) -> None:
    """One connection: each body in turn, and how long its answer took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        start = time.perf_counter()
        writer.write(HEAD % len(body) + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        await reader.readexactly(int(answer.split(b"content-length:")[1].split(b"\r\n")[0]))
        taken_s.append(time.perf_counter() - start)
        if pause_s:
            await asyncio.sleep(pause_s)
    writer.close()


async def clients(port: int, model: str, rounds: int) -> None:
    """The other process: makes all bodies, says so, waits for a line, sends, and tells how long each took."""
    sent = [[prompt(model, number * rounds + turn) for turn in range(rounds)] for number in range(CLIENTS)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    taken_s: list[float] = []
    await asyncio.gather(*(ask(port, bodies, taken_s) for bodies in sent))
    print(json.dumps(taken_s), flush=True)


async def probed(port: int, until: asyncio.Event) -> list[float]:
    body = small()

    def bodies() -> Iterator[bytes]:
        while not until.is_set():
            yield body

    taken_s: list[float] = []
    await ask(port, bodies(), taken_s, EVERY_S)
    return taken_s


async def compare(port: int, model: str, rounds: int) -> None:
    """The probe alone, then beside the clients."""
    others = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.stall", "--clients", str(port), model, str(rounds)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=1 << 24,
    )
    assert others.stdin is not None
    assert others.stdout is not None
    await others.stdout.readline()
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(ALONE_S, until.set)
    alone = await probed(port, until)
    until = asyncio.Event()
    probing = asyncio.ensure_future(probed(port, until))
    start = time.perf_counter()
    others.stdin.write(b"go\n")
    taken_s = json.loads(await others.stdout.readline())
    wall_s = time.perf_counter() - start
    until.set()
    beside = await probing
    await others.wait()
    print(
        f"{model}: {CLIENTS} clients, {rounds} prompts of {TOKENS:,} tokens each in {wall_s:.1f} s"
        f" ({CLIENTS * rounds * TOKENS / wall_s / 1e6:.2f} million tokens a second;"
        f" p50 of an answer {statistics.median(taken_s):.2f} s)"
    )
    for name, values in (("alone", alone), ("beside them", beside)):
        print(f"  small requests {name:12} {quantiles_ms(values)}  (n = {len(values)})", flush=True)


def quantiles_ms(taken_s: Sequence[float]) -> str:
    ordered = sorted(taken_s)
    picked = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    parts = [f"{name} {ordered[int(len(ordered) * share)] * 1e3:6.1f} ms" for name, share in picked.items()]
    return "  ".join([*parts, f"max {ordered[-1] * 1e3:6.1f} ms"])


@contextmanager
def started(*command: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def measure(rounds: int) -> None:
    from tests.unit.tokens.template_models import SMOLLM, model_folder

    up, ours = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "c.toml")
        config.write_text(CONFIG.format(port=up, files=model_folder(SMOLLM, Path(folder))))
        with (
            started("tests.bench.servers", "upstream", str(up)),
            started("proxy", "serve", "--config", str(config), "--port", str(ours)),
        ):
            for port in (up, ours):
                await until_open(port)
            await ask(ours, [small()] * 200, [])
            for model in ("gpt-4o", "local"):
                await compare(ours, model, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="prompts that each client sends")
    parser.add_argument("--clients", nargs=3, metavar=("PORT", "MODEL", "ROUNDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        uvloop.run(clients(int(options.clients[0]), options.clients[1], int(options.clients[2])))
    else:
        uvloop.run(measure(options.rounds))
