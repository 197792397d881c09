"""Scores a long conversation, replayed through chatfuse's stages and through other ways to trim.

`python -m tests.bench.conversation`. Others are measured where they are installed: `pip install langchain-core
litellm` into an environment that has `chatfuse[test]`, best into one of its own.

over: prompts above the budget, or prompt and max_tokens above the window. refused: of our own accord, or what
OpenAI would answer 400. shape: prompts whose first message is no user's, or with two of one role in a row.
reuse: mean share of a prompt that is the same as the beginning of the one before in its conversation, after
the first cut. cold: tokens to prefill with a prefix cache of 16-token blocks. moves: how often the cut moved.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from time import perf_counter

from proxy.history.validity import problems
from tests.bench import trimmers
from tests.bench.histories import SCENARIOS, History
from tests.bench.served import PrefixCache, Served
from tests.bench.trimmers import BUDGET, WINDOW, Trim

SEEDS = (1, 2, 3)
LOW_WATERS = (0.56, 0.5, 0.45, 0.4, 0.35)


@dataclass
class Score:
    requests: int = 0
    over: int = 0
    refused: int = 0
    shape: int = 0
    cold: int = 0
    moves: int = 0
    reuse: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    """After the first cut."""
    messages: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def row(self, name: str) -> str:
        prompt = mean(self.prompts) if self.prompts else 0.0
        return (
            f"{name:32} {self.over:5} {self.refused:8} {self.shape:6} {mean(self.reuse or [0]):6.3f} "
            f"{self.cold:8,} {prompt:7.0f} {mean(self.messages or [0]):9.1f} {self.moves:6} "
            f"{self.seconds / max(1, self.requests) * 1000:9.2f}"
        )


HEADER = (
    f"{'':32} {'over':>5} {'refused':>8} {'shape':>6} {'reuse':>6} {'cold':>8} "
    f"{'prompt':>7} {'messages':>9} {'moves':>6} {'ms/trim':>9}"
)


async def score(histories: Sequence[History], trim: Trim, served: Served) -> Score:
    found, cache = Score(), PrefixCache()
    before: dict[str, tuple[list[int], int]] = {}  # of each conversation, told by what was said first
    for history in histories:
        found.requests += 1
        started = perf_counter()
        sent = await trim(history)
        found.seconds += perf_counter() - started
        if sent is None:
            found.refused += 1
            continue
        messages, reply = sent
        ids = served.ids(messages)
        found.over += len(ids) > BUDGET or len(ids) + reply > WINDOW
        found.refused += bool(problems(messages))
        found.shape += misshapen(messages)
        found.cold += cache.cold(ids)
        cut = len(history) - len(messages)
        talk = str(history[1])
        if cut and talk in before:
            last, dropped = before[talk]
            found.reuse.append(common(last, ids) / len(ids))
            found.prompts.append(len(ids))
            found.messages.append(len(messages))
            found.moves += cut != dropped
        before[talk] = ids, cut
    return found


def misshapen(messages: History) -> bool:
    roles = [m["role"] for m in messages if m["role"] not in ("system", "developer")]
    return roles[:1] != ["user"] or any(a == b and a != "tool" for a, b in pairwise(roles))


def common(one: Sequence[int], two: Sequence[int]) -> int:
    for at, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return at
    return min(len(one), len(two))


def average(scores: Sequence[Score]) -> Score:
    """Of the same scenario with other texts: means of the numbers, and all the shares."""
    whole = Score()
    for one in scores:
        whole.reuse += one.reuse
        whole.prompts += one.prompts
        whole.messages += one.messages
        whole.seconds += one.seconds / len(scores)
    for name in ("requests", "over", "refused", "shape", "cold", "moves"):
        setattr(whole, name, round(mean(getattr(one, name) for one in scores)))
    return whole


async def compare(name: str, served: Served) -> None:
    talks = [SCENARIOS[name](seed) for seed in SEEDS[: 1 if name != "peers" else None]]
    longest = max(served.tokens(history) for talk in talks for history in talk)
    print(
        f"\n{name}: {len(talks[0])} requests, the longest has {longest:,} tokens; budget {BUDGET:,}"
        + (f"; means of {len(talks)} conversations" if len(talks) > 1 else "")
    )
    print(HEADER)
    trims = [(f"chatfuse, low_water {low}", trimmers.chatfuse(served, low)) for low in LOW_WATERS]
    trims.append(("drop oldest turns", trimmers.drop_oldest(served)))
    if name == "peers":
        trims += others(served)
    for label, trim in trims:
        print(average([await score(talk, trim, served) for talk in talks]).row(label), flush=True)


def others(served: Served) -> list[tuple[str, Trim]]:
    """Those that are installed."""
    found: list[tuple[str, Trim]] = []
    try:
        found.append(("LangChain, start on human", trimmers.langchain(served, start_on="human")))
        found.append(("LangChain, default", trimmers.langchain(served)))
    except ImportError as error:
        print(f"LangChain: not measured ({error.name} is not installed)")
    try:
        found.append(("LiteLLM", trimmers.litellm()))
    except ImportError as error:
        print(f"LiteLLM: not measured ({error.name} is not installed)")
    return found


async def main(names: Sequence[str]) -> None:
    served = Served()
    for name in names:
        await compare(name, served)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)} (default: all)")
    asyncio.run(main(parser.parse_args().scenarios or list(SCENARIOS)))
