"""Whole conversations at a server that enforces prompt + max_tokens, counted as it counts: none fails, few cuts."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.bench import histories, trimmers
from tests.bench.conversation import Score, score
from tests.bench.histories import History
from tests.bench.served import Served


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


SMALL: dict[str, list[History]] = {
    "peers": histories.peers(turns=60),
    "tool-heavy": histories.tool_heavy(turns=10),
    "late attach": histories.late_attach()[:5],
    "branched": histories.branched()[:40],
    "interleaved": histories.interleaved()[:60],
    "agent loop": histories.agent_loop(steps=30),
    "huge result": histories.huge_result()[:35],
}


async def replay(name: str, low_water: float, served: Served) -> Score:
    return await score(SMALL[name], trimmers.chatfuse(served, low_water), served)


@pytest.mark.parametrize("name", SMALL)
async def test_nothing_is_over_or_refused_or_misshapen(name: str, served: Served) -> None:
    found = await replay(name, 0.5, served)
    assert (found.over, found.refused, found.shape) == (0, 0, 0)


async def test_a_prefix_cache_is_reused_and_most_of_the_budget_used(served: Served) -> None:
    found = await replay("peers", 0.5, served)
    assert mean(found.reuse) > 0.8
    assert mean(found.prompts) > 2700
    naive = await score(SMALL["peers"], trimmers.drop_oldest(served), served)
    assert found.cold < naive.cold / 4


async def test_what_is_squeezed_keeps_the_prefix_too(served: Served) -> None:
    trim = trimmers.chatfuse(served, 0.5, squeeze={"tool_output_tokens": 300, "base64": True})
    found = await score(SMALL["tool-heavy"], trim, served)
    assert (found.over, found.refused, found.shape) == (0, 0, 0)
    assert mean(found.reuse) > 0.65
