"""What counting a conversation costs, cold and warm, against tokenizing all of it; and the memory of encodings.

`python -m tests.bench.counting`. 60 messages, 12,000 tokens. Cold: none was seen before. Warm: 58 were, and the
last two are new. Again: the same request once more. Each round takes a conversation of its own and times all of
them on it; the ratios are medians over the rounds. Compared with tiktoken over each message's text (no rules for
what stands around it), and with transformers' `apply_chat_template(tokenize=True)`.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from proxy.tokens.counts import Counter
from proxy.tokens.encodings import RECIPES, encoding
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo
from tests.bench.overhead import ROOT
from tests.bench.stall import WORDS
from tests.unit.tokens.template_models import SMOLLM, model_folder

MESSAGES, SEEN, TOKENS = 60, 58, 12_000
MODEL = "gpt-4o"

Body = dict[str, Any]
Whole = Callable[[Body], Awaitable[int]]


def conversation(seed: int, ending: int = 0) -> Body:
    """The same seed begins alike; the last two messages are the ending's."""
    first, last = random.Random(seed), random.Random(-1 - seed * 1000 - ending)
    messages = [
        {
            "role": ("user", "assistant")[n % 2],
            "content": " ".join((first if n < SEEN else last).choices(WORDS, k=200)),
        }
        for n in range(MESSAGES - 1)
    ]
    return {"model": MODEL, "messages": [{"role": "system", "content": "Be brief."}, *messages]}


async def taken_us(count: Callable[[Body], Awaitable[Any]], body: Body) -> float:
    start = time.perf_counter()
    await count(body)
    return (time.perf_counter() - start) * 1e6


async def compare(name: str, counter: Counter, whole: Whole, reference: str, rounds: int) -> None:
    taken: dict[str, list[float]] = {"cold": [], "warm": [], "again": [], reference: []}
    for number in range(rounds + 1):
        body, next_one = conversation(number), conversation(number, ending=1)
        gc.collect()
        times = (
            await taken_us(counter.count, body),
            await taken_us(counter.count, next_one),
            await taken_us(counter.count, next_one),
            await taken_us(whole, next_one),
        )
        if number:  # the first round only warms up
            for values, time_us in zip(taken.values(), times, strict=True):
                values.append(time_us)
    ours, theirs = await counter.count(next_one), await whole(next_one)
    print(f"{name}: {ours.tokens:,} tokens ({reference}: {theirs:,}), n = {rounds}")
    for kind, values in taken.items():
        ratios = sorted(a / b for a, b in zip(taken[reference], values, strict=True))
        compared = (
            ""
            if kind == reference
            else f"   {reference} takes {statistics.median(ratios):6.1f} times as long"
        )
        ordered = sorted(values)
        print(
            f"  {kind:34} {statistics.median(ordered):8.0f} us"
            f"  ({ordered[rounds // 10]:.0f} to {ordered[-1 - rounds // 10]:.0f}){compared}"
        )


async def speeds(rounds: int) -> None:
    pool = CountingPool()
    names = ("tiktoken", "tokenizers", "transformers", "jinja2", "orjson")
    print("Python", sys.version.split()[0], *(f"{name} {version(name)}" for name in names))
    encode = encoding("o200k_base").encode

    async def by_tiktoken(body: Body) -> int:
        return sum(len(encode(message["content"], disallowed_special=())) for message in body["messages"])

    await compare(MODEL, LocalCounter(MODEL, None, Memo(100_000), pool), by_tiktoken, "tiktoken", rounds)
    with tempfile.TemporaryDirectory() as folder:
        await by_template(model_folder(SMOLLM, Path(folder)), pool, rounds)
    pool.close()


async def by_template(files: Path, pool: CountingPool, rounds: int) -> None:
    from transformers import PreTrainedTokenizerFast

    from proxy.tokens.template import ChatTemplate
    from proxy.tokens.template_counter import TemplateCounter
    from proxy.tokens.tokenizer_files import load

    theirs = PreTrainedTokenizerFast.from_pretrained(files)

    async def by_transformers(body: Body) -> int:
        made = theirs.apply_chat_template(
            body["messages"], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return len(made)

    ours = TemplateCounter(ChatTemplate.load(files), load(files), Memo(100_000), pool)
    await compare("SmolLM2", ours, by_transformers, "transformers", rounds)


RSS = """
import gc, psutil, sys
from pathlib import Path
import proxy.app
def rss(): gc.collect(); return psutil.Process().memory_info().rss / 2**20
before = rss()
{load}
print(f"{{before:.0f}} {{rss():.0f}}")
"""
FILES = (
    "from proxy.tokens.template import ChatTemplate; from proxy.tokens.tokenizer_files import load;"
    "from proxy.tokens.segments import SegmentCounter; from proxy.tokens.memo import Memo;"
    "kept = ChatTemplate.load(Path({0!r})), SegmentCounter(load(Path({0!r})), Memo(9))"
)


def memory() -> None:
    """Each in a process of its own, beside what the proxy has loaded anyway."""
    loads = {"none": ""}
    loads |= {name: f"from proxy.tokens.encodings import encoding; encoding({name!r})" for name in RECIPES}
    both = "; encoding('o200k_base')"
    loads["cl100k_base and o200k_base"] = loads["cl100k_base"] + both
    with tempfile.TemporaryDirectory() as folder:
        loads["SmolLM2's own files"] = FILES.format(str(model_folder(SMOLLM, Path(folder))))
        print("resident memory, MiB: the proxy's modules, and with an encoding")
        for name, load in loads.items():
            before, after = rss(RSS.format(load=load))
            print(f"  {name:28} {before:5} -> {after:5}  (+{after - before})")


def rss(script: str) -> Sequence[int]:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    uvloop.run(speeds(parser.parse_args().rounds))
    memory()
