"""What of a conversation is sent on, counted by a real tokenizer: the cut, what fits nowhere, what is squeezed."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from proxy.conversation import JSON_NOTE
from proxy.errors import Overflow
from proxy.history.validity import problems
from tests.unit.stages.attempts import counter, said, sent, shape, talk, words

Message = dict[str, Any]
USER: Message = {"role": "user", "content": "go on"}


def call(*ids: str) -> Message:
    made = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(of: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": of, "content": content}


async def exact(messages: Sequence[Mapping[str, Any]]) -> int:
    return (await counter().count({"messages": list(messages)})).tokens


# --- the cut ---


async def test_keep_changes_nothing_whatever_else_is_set() -> None:
    it = await shape(
        {"messages": talk(50)}, strategy="keep", budget_tokens=100, squeeze={"tool_output_tokens": 64}
    )
    assert it.shaped.edits.none
    assert it.shaped.counts is it.counts


async def test_what_fits_leaves_as_it_came() -> None:
    it = await shape({"messages": talk(5)}, budget_tokens=2000)
    assert it.shaped.edits.none
    assert (it.shaped.trimmed_tokens, it.shaped.dropped_turns) == (0, 0)


async def test_the_oldest_turns_go_and_the_count_is_of_what_is_sent() -> None:
    messages = [*talk(50), USER]
    it = await shape({"messages": messages}, budget_tokens=2000)
    out = sent(it)
    assert out.messages[0] == messages[0]
    assert list(out.messages[1:]) == messages[-len(out.messages) + 1 :]
    assert out.messages[1]["role"] == "user"
    assert it.shaped.counts.tokens == await exact(out.messages) <= 2000
    assert it.shaped.trimmed_tokens == it.counts.tokens - it.shaped.counts.tokens
    assert it.shaped.dropped_turns > 0


async def test_no_budget_is_no_cut() -> None:
    assert (await shape({"messages": talk(500)})).shaped.edits.none


async def test_what_fits_with_no_cut_is_an_overflow_with_the_numbers() -> None:
    with pytest.raises(Overflow, match="300 tokens") as told:
        await shape({"messages": [{"role": "user", "content": words(1000)}]}, budget_tokens=300)
    assert told.value.http_status == 400
    assert "1007 tokens" in told.value.message


# --- a single text that is too large ---


def loop(steps: int, size: int) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, USER]
    for step in range(steps):
        messages += [call("call_1"), result("call_1", f"{step} begins {words(size)} ends {step}")]
    return messages


async def test_one_huge_tool_result_keeps_its_ends_with_a_note_between() -> None:
    messages = loop(1, 20_000)
    it = await shape({"messages": messages}, budget_tokens=1000)
    out = sent(it)
    assert problems(out.messages) == []
    assert it.shaped.counts.tokens == await exact(out.messages) <= 1000
    text = out.messages[-1]["content"]
    assert text.startswith("0 begins")
    assert text.endswith("ends 0")
    head, note, tail = text.split("\n")
    assert note.startswith("[... 19,6")
    assert note.endswith(" tokens left out ...]")
    assert len(head) == pytest.approx(len(tail), rel=0.1)


async def test_parallel_results_that_are_too_large_together_are_each_shortened() -> None:
    results = [result(i, f"{i} {words(900)}") for i in "abc"]
    messages = [USER, call("a", "b", "c"), *results]
    it = await shape({"messages": messages}, budget_tokens=2000)
    assert it.shaped.counts.tokens <= 2000
    assert len(sent(it).messages) == 5


async def test_a_shortened_result_stays_the_same_while_the_loop_grows() -> None:
    messages = loop(1, 5000)
    first = sent(await shape({"messages": messages}, budget_tokens=2000)).messages
    for step in range(3):
        messages += [call("call_1"), result("call_1", f"more {step} {words(30)}")]
        then = sent(await shape({"messages": messages}, budget_tokens=2000)).messages
        assert list(then[: len(first)]) == list(first)


async def test_what_users_say_is_shortened_only_where_the_config_says_so() -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": f"a {words(5000)} z"}]
    with pytest.raises(Overflow):
        await shape({"messages": messages}, budget_tokens=1000)
    it = await shape({"messages": messages}, budget_tokens=1000, shorten_messages=True)
    text = sent(it).messages[1]["content"]
    assert text.startswith("a word")
    assert text.endswith("word z")
    assert "tokens left out ...]" in text
    assert it.shaped.counts.tokens <= 1000


async def test_a_pinned_message_gives_way_to_the_results_behind_it_where_that_is_allowed() -> None:
    messages = [{"role": "user", "content": words(950)}, call("a"), result("a", words(500))]
    with pytest.raises(Overflow):
        await shape({"messages": messages}, budget_tokens=1000)
    it = await shape({"messages": messages}, budget_tokens=1000, shorten_messages=True)
    assert it.shaped.counts.tokens <= 1000
    assert len(sent(it).messages) == 3


async def test_a_huge_system_prompt_is_never_touched() -> None:
    with pytest.raises(Overflow):
        await shape(
            {"messages": [*talk(0, system=words(2000)), USER]}, budget_tokens=1000, shorten_messages=True
        )


async def test_results_that_fit_are_not_shortened_for_others() -> None:
    messages = [*loop(12, 300), *talk(4)[1:], USER]
    it = await shape({"messages": messages}, budget_tokens=1500)
    assert not it.shaped.edits.texts


# --- squeeze ---


async def test_long_tool_outputs_are_shortened_although_all_would_fit() -> None:
    messages = [*loop(3, 400), *loop(2, 10)[1:]]
    it = await shape({"messages": messages}, budget_tokens=9000, squeeze={"tool_output_tokens": 100})
    out = sent(it).messages
    assert [len(out[i]["content"]) < 600 for i in (3, 5, 7)] == [True] * 3
    assert it.shaped.cut is None
    assert it.shaped.counts.tokens == await exact(out) < it.counts.tokens
    for i in (3, 5, 7):
        assert await exact([{"role": "user", "content": out[i]["content"]}]) <= 100 + 7
    # Other messages keep their bytes.
    for i in (0, 1, 2, 9, 11):
        assert out[i] == messages[i]


async def test_a_squeezed_output_is_the_same_from_its_first_appearance_on() -> None:
    messages: list[Message] = [USER]
    before: list[Any] = []
    for step in range(12):
        messages += [call("a"), result("a", f"{step} {words(300)}")]
        it = await shape({"messages": messages}, budget_tokens=90_000, squeeze={"tool_output_tokens": 80})
        out = list(sent(it).messages)
        assert out[: len(before)] == before
        before = out


async def test_a_system_message_that_says_the_same_again_is_left_out() -> None:
    rule = {"role": "system", "content": "Be brief."}
    note = {"role": "system", "content": "The user is in Lisbon."}
    turn = [USER, {"role": "assistant", "content": "ok"}]
    messages = [rule, *turn, note, *turn, rule, *turn, note, USER]
    it = await shape({"messages": messages}, budget_tokens=5000, squeeze={"system_repeats": True})
    assert list(sent(it).messages) == [rule, *turn, note, *turn, *turn, USER]
    assert it.shaped.counts.tokens == await exact(sent(it).messages)
    # Once the first note is dropped, the next one stays.
    longer = [rule, *turn, note, *talk(30)[1:], note, *talk(3)[1:], USER]
    out = sent(
        await shape({"messages": longer}, budget_tokens=1500, squeeze={"system_repeats": True})
    ).messages
    assert [m for m in out if m["role"] == "system"] == [rule, note]


async def test_base64_becomes_a_note() -> None:
    blob = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    messages = [
        {"role": "user", "content": f"look: data:image/png;base64,{blob} nice?"},
        call("a"),
        result("a", [{"type": "text", "text": f'{{"file": "{blob}"}}'}]),
    ]
    it = await shape({"messages": messages}, budget_tokens=90_000, squeeze={"base64": True})
    out = sent(it).messages
    assert out[0]["content"] == "look: [base64 data left out: 4,022 characters] nice?"
    assert out[2]["content"][0]["text"] == '{"file": "[base64 data left out: 4,000 characters]"}'


# --- json_object ---


async def test_the_only_word_json_is_not_lost_by_a_cut() -> None:
    asks = {"role": "user", "content": "Answer with a JSON object."}
    messages = [{"role": "system", "content": "x"}, asks, *talk(40)[2:], USER]
    fields = {"messages": messages, "response_format": {"type": "json_object"}}
    out = sent(await shape(fields, budget_tokens=1500)).messages
    assert problems(out, json_object=True) == []
    assert out[1]["content"].startswith(JSON_NOTE)
    assert [m["role"] for m in out[:3]] == ["system", "user", "assistant"]
    # Not where the head has it, nor without the mode.
    fields = {**fields, "messages": [{"role": "system", "content": "Use json."}, *messages[1:]]}
    assert JSON_NOTE not in str(said(sent(await shape(fields, budget_tokens=1500))))
    assert JSON_NOTE not in str(said(sent(await shape({"messages": messages}, budget_tokens=1500))))


async def test_unsure_counts_stay_unsure_after_a_cut() -> None:
    image = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    messages = [*talk(40), {"role": "user", "content": [image]}]
    it = await shape({"messages": messages}, budget_tokens=1500)
    assert it.counts.unsure
    assert it.shaped.counts.unsure
