from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.history.summary import clean, key, label, parts, questions, transcript

SECRET = b"s" * 32
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_the_same_history_of_the_same_owner_has_the_same_key() -> None:
    assert key(SECRET, ["web", "m"], MESSAGES) == key(SECRET, ["web", "m"], [dict(m) for m in MESSAGES])


def test_another_owner_another_secret_or_another_history_has_another_key() -> None:
    keys = {
        key(SECRET, ["web", "m"], MESSAGES),
        key(SECRET, ["we", "bm"], MESSAGES),
        key(SECRET, ["app", "m"], MESSAGES),
        key(b"t" * 32, ["web", "m"], MESSAGES),
        key(SECRET, ["web", "m"], MESSAGES[:1]),
        key(SECRET, ["web", "m"], [{"role": "user", "content": "\ud800"}]),
    }
    assert len(keys) == 6


def test_a_key_tells_nothing_of_the_text() -> None:
    assert b"secret" not in key(SECRET, ["o"], [{"role": "user", "content": "secret"}])


def test_a_record_names_who_spoke_and_what_was_called() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}],
    }
    assert transcript(call) == 'assistant: (calls weather with {"city":"Oslo"})'
    assert transcript({"role": "tool", "content": "-3 °C"}) == "tool: -3 °C"


def test_parts_that_are_no_text_are_named_and_nothing_else_of_them_is_kept() -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:xyz"}}]
    assert transcript({"role": "user", "content": content}) == "user: look\n(image_url that is no text)"


def test_a_message_without_text_leaves_no_line() -> None:
    assert transcript({"role": "assistant", "content": ""}) == ""
    assert transcript({"role": "assistant", "content": None, "tool_calls": "odd"}) == ""


def test_the_former_memory_is_carried_over() -> None:
    system, user = questions("Ann is 40.", "user: hi", 100)
    assert system["role"] == "system"
    assert user["content"].index("Ann is 40.") < user["content"].index("user: hi")
    assert "at most 60 words" in user["content"]


def test_without_a_former_memory_none_is_spoken_of() -> None:
    assert "Earlier memory" not in questions("", "user: hi", 100)[1]["content"]


def test_thinking_and_marks_are_no_part_of_a_summary() -> None:
    assert clean("<think>well</think>\n<<<\nAnn is 40.\n>>>") == "Ann is 40."
    assert label("Ann is 40.").startswith("[Memory of the earlier part")


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 1000))
def test_parts_hold_every_text_once_in_order_and_fit_where_one_text_does(
    tokens: list[int], room: int
) -> None:
    made = parts(["x"] * len(tokens), tokens, room)
    assert [index for part in made for index in part] == list(range(len(tokens)))
    for part in made:
        assert part
        assert sum(tokens[i] for i in part) <= room or len(part) == 1 or any(tokens[i] == 0 for i in part)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_what_fits_is_one_part(tokens: list[int]) -> None:
    assert len(parts(["x"] * len(tokens), tokens, max(1, sum(tokens)))) == 1
