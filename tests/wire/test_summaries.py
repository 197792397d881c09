"""Summaries on the wire: written in the background, kept to, one for each boundary, and nobody waits."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable

import aiohttp

from proxy.tokens.encodings import encoding
from tests.conftest import StartProxy
from tests.fakes.upstream import Answer, Peer, Received, ScriptedUpstream, completion, json_answer
from tests.proxy_fixture import Proxy
from tests.wire.requests import chat
from tests.wire.talk import MEMORY, SUMMARY, Talk, config, is_question, nothing


def writer(write: Callable[[Received], Answer] | None = None) -> Answer:
    """Answers chats, and writes summaries: a fixed one, or what `write` gives."""

    async def answer(request: Received, peer: Peer) -> None:
        if not is_question(request):
            await json_answer(completion("Well."))(request, peer)
        elif write is None:
            await json_answer(completion(MEMORY))(request, peer)
        else:
            await write(request)(request, peer)

    return answer


async def begin(start_proxy: StartProxy, upstream: ScriptedUpstream, window: int = 4000) -> Proxy:
    return await start_proxy(config(upstream, f", summary = {SUMMARY}", window=window))


async def until_cut(talk: Talk) -> dict[str, str]:
    for _ in range(40):
        headers = await talk.turn()
        if int(headers["x-chatfuse-dropped-turns"]):
            return headers
    raise AssertionError("nothing was cut")


async def test_what_the_cut_drops_is_remembered_in_front_of_what_is_kept(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream), upstream)
    headers = await until_cut(talk)
    assert headers["x-chatfuse-summary"] == "used"
    system, first, *rest = talk.sent
    assert system["content"] == "Be brief."
    assert first["role"] == "user"
    assert MEMORY in first["content"]
    assert first["content"].index(MEMORY) < first["content"].index("Question ")
    assert int(headers["x-chatfuse-tokens-in"]) <= 600
    roles = [message["role"] for message in (first, *rest)]
    assert all(a != b for a, b in itertools.pairwise(roles))
    metrics = await talk.proxy.metrics()
    assert metrics['chatfuse_summaries_total{outcome="written"}'] == 1
    assert metrics['chatfuse_summaries_total{outcome="used"}'] == 1


async def test_one_summary_for_each_boundary_built_on_the_one_before(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream), upstream)
    cuts = set()
    for _ in range(40):
        headers = await talk.turn()
        if (dropped := int(headers["x-chatfuse-dropped-turns"])) > 0:
            cuts.add(dropped)
            assert headers["x-chatfuse-summary"] == "used"
    assert len(cuts) >= 3
    questions = [question.json["messages"][1]["content"] for question in talk.questions()]
    assert len(cuts) <= len(questions) <= len(cuts) + 1
    assert MEMORY not in questions[0]
    for earlier, later in itertools.pairwise(questions):
        assert MEMORY in later  # carried over, and not read again:
        assert not [
            line for line in earlier.splitlines() if line.startswith("user: Question") and line in later
        ]


async def test_the_prefix_stays_the_same_between_cuts(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream), upstream)
    headers = await until_cut(talk)
    before, dropped = talk.sent, headers["x-chatfuse-dropped-turns"]
    headers = await talk.turn()
    assert headers["x-chatfuse-dropped-turns"] == dropped
    assert talk.sent[: len(before)] == before


async def test_a_request_never_waits_and_a_late_summary_serves_the_next_boundary(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    go = asyncio.Event()

    def slow(_: Received) -> Answer:
        async def answer(request: Received, peer: Peer) -> None:
            await go.wait()
            await json_answer(completion(MEMORY))(request, peer)

        return answer

    upstream.default = writer(slow)
    talk = Talk(await begin(start_proxy, upstream), upstream)
    talk.settled = nothing  # type: ignore[method-assign]
    headers = await until_cut(talk)
    assert headers["x-chatfuse-summary"] == "pending"
    assert MEMORY not in json.dumps(talk.sent)
    first = headers["x-chatfuse-dropped-turns"]
    go.set()
    del talk.settled
    await talk.settled()
    headers = await talk.turn()
    # It is here now, and its boundary goes on without it: the prefix holds.
    assert (headers["x-chatfuse-summary"], headers["x-chatfuse-dropped-turns"]) == ("none", first)
    while headers["x-chatfuse-dropped-turns"] == first:
        headers = await talk.turn()
    assert headers["x-chatfuse-summary"] == "used"


async def test_callers_never_share_a_summary(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.default = writer()
    proxy = await begin(start_proxy, upstream)
    one, other = Talk(proxy, upstream, "key-one"), Talk(proxy, upstream, "key-two")
    await until_cut(one)
    asked = len(one.questions())
    await until_cut(other)
    assert len(other.questions()) == 2 * asked


async def test_a_summarizer_that_fails_costs_the_summary_and_no_request(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer(lambda _: json_answer({"error": {"message": "no"}}, 400))
    talk = Talk(await begin(start_proxy, upstream), upstream)
    headers = await until_cut(talk)
    assert headers["x-chatfuse-summary"] == "none"
    assert int(headers["x-chatfuse-tokens-in"]) <= 600
    for _ in range(3):
        await talk.turn()
    metrics = await talk.proxy.metrics()
    assert metrics['chatfuse_summaries_total{outcome="failed"}'] >= 1
    assert len(talk.questions()) <= 4  # tries are bounded


async def test_a_record_longer_than_the_writers_window_is_read_by_parts(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    """A client that comes with a long history: nothing is ever fed whole."""
    window = 600
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream, window), upstream)
    for number in range(30):
        talk.messages += [
            {"role": "user", "content": f"Question {number}: " + "why is it so " * 12},
            {"role": "assistant", "content": f"Answer {number}: " + "because of that " * 8},
        ]
    talk.messages += [
        {"role": "user", "content": "A book: " + "once upon a time there was " * 300},
        {"role": "assistant", "content": "I see."},
    ]
    for _ in range(8):
        headers = await talk.turn()
    assert headers["x-chatfuse-summary"] == "used"
    lengths = [
        sum(len(encoding("o200k_base").encode(m["content"])) for m in question.json["messages"])
        for question in talk.questions()
    ]
    assert len(lengths) > 5
    assert max(lengths) + 60 <= window


async def test_the_writers_key_is_ours_and_the_clients_key_is_not_kept(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream), upstream, key="sk-of-the-client")
    await until_cut(talk)
    for question in talk.questions():
        assert "sk-of-the-client" not in str(question.headers)


async def test_tool_results_that_are_dropped_are_in_the_record(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    talk = Talk(await begin(start_proxy, upstream), upstream)
    await talk.turn()
    talk.messages += [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "minus 3 degrees"},
        {"role": "assistant", "content": "Cold."},
    ]
    await until_cut(talk)
    asked = "".join(question.json["messages"][1]["content"] for question in talk.questions())
    assert "minus 3 degrees" in asked
    assert "calls weather" in asked


async def test_a_request_chooses_by_header_and_is_told_where_no_model_writes(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.default = writer()
    proxy = await begin(start_proxy, upstream)

    async def ask(model: str, strategy: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{proxy.base_url}/chat/completions",
                data=chat("hi", model=model),
                headers={"x-chatfuse-context": strategy},
            ) as answer,
        ):
            return answer.status, await answer.text()

    assert (await ask("gpt-4o", "summarize"))[0] == 200
    assert (await ask("gpt-4o", "keep"))[0] == 200
    status, text = await ask("gpt-4o-mini", "summarize")
    assert status == 400
    assert "none is named here" in text
