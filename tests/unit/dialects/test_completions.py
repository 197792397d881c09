"""Prompts without messages: every form that one has, and the edit that makes it shorter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.prompt import Edits, Prompt


def read(**fields: Any) -> Prompt:
    return COMPLETIONS.parse(json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("given", "counted", "several", "unsure"),
    [
        ("text", "text", False, ()),
        ([1, 2], [1, 2], False, ()),
        (["a"], ["a"], False, ()),
        (["a", "b"], ["a", "b"], True, ()),
        ([[1], [2, 3]], [[1], [2, 3]], True, ()),
        ([], [], False, ()),
        (None, "", False, ()),
        ([1, "a", 2], [[1], "a", [2]], True, ("a prompt of mixed kinds",)),
        ([[1, "a"], "b"], [[1], "a", "b"], True, ("a prompt of mixed kinds",)),
        ({"prompt_string": "x", "multimodal_data": []}, "x", False, ("a prompt that is an object",)),
        ([{"prompt_string": "x"}], ["x"], False, ("a prompt of mixed kinds",)),
    ],
)
def test_a_prompt_is_counted_as_what_it_is(
    given: Any, counted: Any, several: bool, unsure: tuple[str, ...]
) -> None:
    prompt = read(prompt=given)
    assert prompt.chat == {"prompt": counted}
    assert (prompt.several, prompt.unsure) == (several, unsure)
    assert (list(prompt.items), list(prompt.messages)) == ([], [])


def test_what_else_decides_the_count() -> None:
    assert read(prompt="x", add_special_tokens=False).chat == {"prompt": "x", "add_special_tokens": False}
    assert read(prompt="x", suffix="y").unsure == ("`suffix`, which is not counted",)
    assert not read(prompt="x").may_be_cut
    assert read(prompt="x", truncate_prompt_tokens=5).may_be_cut


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        ('{"model":"m", "prompt" : "a\\u00e9 b" }', "\u00e9 b\n", '{"model":"m", "prompt" : "\u00e9 b\\n" }'),
        ('{"prompt":[1, 2,3],"model":"m"}', [2, 3], '{"prompt":[2,3],"model":"m"}'),
    ],
)
def test_a_part_takes_the_place_of_the_prompt(before: str, new: Any, after: str) -> None:
    prompt = COMPLETIONS.parse(before.encode())
    edits = Edits(prompt=new)
    assert edits.of_history
    assert COMPLETIONS.encode(prompt, edits).decode() == after
    assert COMPLETIONS.view(prompt, edits).chat == {"prompt": new}


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(Exception, match="the key 'prompt' is given twice"):
        COMPLETIONS.parse(b'{"model":"m","prompt":"a","prompt":"b"}')
