"""The same cut in every dialect: what shares an item stays together, and plain prompts keep one end."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import Overflow
from tests.unit.stages.attempts import COMPLETIONS, MESSAGES, RESPONSES, counter, sent, shape, words

Item = dict[str, Any]


# --- /v1/responses ---


def reasoned(turn: int) -> list[Item]:
    """A turn in which the model thinks, calls, and thinks again before it answers."""
    return [
        {"role": "user", "content": f"{turn} {words(50)}"},
        {"type": "reasoning", "id": f"rs_{turn}a", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": f"{turn} {words(100)}"},
        {"type": "reasoning", "id": f"rs_{turn}b", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words(50)}]},
    ]


async def test_responses_items_go_by_turns_and_reasoning_with_what_follows_it() -> None:
    items = [item for turn in range(20) for item in reasoned(turn)] + [{"role": "user", "content": "go on"}]
    fields = {"instructions": "Be brief.", "input": items}
    it = await shape(fields, RESPONSES, budget_tokens=1500)
    out = sent(it)
    assert it.shaped.counts.tokens == (await counter().count(out.chat)).tokens <= 1500
    assert out.fields["instructions"] == "Be brief."
    assert list(out.items) == items[len(items) - len(out.items) :]
    assert (len(items) - len(out.items)) % 6 == 0
    assert it.shaped.dropped_turns == (len(items) - len(out.items)) // 6


async def test_within_a_responses_turn_whole_steps_go() -> None:
    items = [
        {"role": "user", "content": "go on"},
        *[item for turn in range(30) for item in reasoned(turn)[1:4]],
    ]
    it = await shape({"input": items}, RESPONSES, budget_tokens=1500)
    out = sent(it)
    assert out.items[0] == items[0]
    kinds = [item["type"] for item in out.items[1:]]
    assert kinds == ["reasoning", "function_call", "function_call_output"] * (len(kinds) // 3)


async def test_an_input_that_is_a_string_is_one_message() -> None:
    with pytest.raises(Overflow):
        await shape({"input": words(500)}, RESPONSES, budget_tokens=100)
    it = await shape({"input": words(500)}, RESPONSES, budget_tokens=200, shorten_messages=True)
    assert "left out" in sent(it).fields["input"]


async def test_a_huge_function_output_is_shortened() -> None:
    items = [{"role": "user", "content": "go on"}, *reasoned(0)[1:3]]
    items += [{"type": "function_call_output", "call_id": "c", "output": words(9000)}]
    it = await shape({"input": items}, RESPONSES, budget_tokens=1000)
    assert it.shaped.counts.tokens <= 1000
    assert "left out" in sent(it).items[3]["output"]
    assert list(sent(it).items[:3]) == items[:3]


# --- /v1/messages ---


def used(turn: int, behind: str = "") -> list[Item]:
    text = [{"type": "text", "text": behind}] if behind else []
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": f"t{turn}", "name": "f", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"{turn} {words(100)}"}
    return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [answer, *text]}]


def pairs_hold(messages: list[Item]) -> bool:
    """Every tool_result answers a call in the message before it, and every call is answered."""
    for before, message in zip([{}, *messages], messages, strict=False):
        calls = {
            b["id"] for b in before.get("content", ()) if isinstance(b, dict) and b["type"] == "tool_use"
        }
        answers = {
            b["tool_use_id"] for b in message["content"] if isinstance(b, dict) and b["type"] == "tool_result"
        }
        if calls != answers:
            return False
    return True


@pytest.mark.parametrize("behind", ["", "and hurry"])
async def test_messages_keep_results_with_their_calls_also_when_the_user_speaks_behind_them(
    behind: str,
) -> None:
    items: list[Item] = []
    for turn in range(25):
        items += [{"role": "user", "content": f"{turn} {words(40)}"}, *used(turn, behind)]
        items += [{"role": "assistant", "content": "done"}]
    items += [{"role": "user", "content": "go on"}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    it = await shape({"system": system, "messages": items, "max_tokens": 9}, MESSAGES, budget_tokens=1500)
    out = sent(it)
    assert it.shaped.counts.tokens == (await counter().count(out.chat)).tokens <= 1500
    assert out.fields["system"] == system
    assert list(out.items) == items[len(items) - len(out.items) :]
    assert out.items[0]["role"] == "user"
    assert pairs_hold(list(out.items))


@pytest.mark.parametrize("behind", ["", "and hurry"])
async def test_a_long_tool_loop_of_messages_keeps_its_question_and_its_end(behind: str) -> None:
    items: list[Item] = [{"role": "user", "content": "do it"}]
    before: list[int] = []
    for turn in range(30):
        items += used(turn, behind)
        it = await shape({"messages": items, "max_tokens": 9}, MESSAGES, budget_tokens=1500)
        out = list(sent(it).items)
        assert out[0] == items[0]
        assert out[1:] == items[len(items) - len(out) + 1 :]
        assert pairs_hold(out)
        before.append(len(items) - len(out))
    assert before == sorted(before)
    assert len(set(before)) < 8


# --- /v1/completions ---


def lines(number: int) -> str:
    return "\n".join(f"{i}: {words(18)}" for i in range(number))


async def test_a_plain_prompt_keeps_its_end_from_a_place_that_holds() -> None:
    starts = []
    for number in range(40, 200, 4):
        it = await shape({"prompt": lines(number)}, COMPLETIONS, budget_tokens=1000)
        out = sent(it).fields["prompt"]
        assert it.shaped.counts.tokens == (await counter().count({"prompt": out})).tokens <= 1000
        assert lines(number).endswith(out)
        starts.append(len(lines(number)) - len(out))
    assert starts == sorted(starts)
    assert len(set(starts)) == 8  # 3,600 tokens more, by 500
    gaps = {b - a for a, b in zip(sorted(set(starts)), sorted(set(starts))[1:], strict=False)}
    assert max(gaps) - min(gaps) < 60


async def test_or_its_beginning() -> None:
    kept = {
        sent(
            await shape({"prompt": lines(n)}, COMPLETIONS, budget_tokens=1000, completions_keep="head")
        ).fields["prompt"]
        for n in range(60, 100, 10)
    }
    assert len(kept) == 1
    (text,) = kept
    assert lines(60).startswith(text)
    assert 950 < (await counter().count({"prompt": text})).tokens <= 1000


@pytest.mark.parametrize("ends", ["head", "tail"])
async def test_token_ids_are_cut_as_ids(ends: str) -> None:
    ids = list(range(100, 5100))
    it = await shape({"prompt": ids}, COMPLETIONS, budget_tokens=1000, completions_keep=ends)
    out = sent(it).fields["prompt"]
    assert out == (ids[:1000] if ends == "head" else ids[4000:])
    assert it.shaped.counts.tokens == 1000


async def test_several_prompts_are_never_cut() -> None:
    it = await shape({"prompt": [words(900), words(900)]}, COMPLETIONS, budget_tokens=1000)
    assert it.shaped.edits.none
    one = await shape({"prompt": [lines(99)]}, COMPLETIONS, budget_tokens=1000)
    assert one.shaped.counts.tokens <= 1000


async def test_a_plain_prompt_of_one_endless_word_is_cut_all_the_same() -> None:
    it = await shape({"prompt": "a" * 50_000}, COMPLETIONS, budget_tokens=1000)
    assert 0 < it.shaped.counts.tokens <= 1000
