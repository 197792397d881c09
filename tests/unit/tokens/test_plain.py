"""Prompts without messages: each of the shapes that servers take."""

from typing import Any

import pytest

from proxy.tokens.plain import plain_prompt


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"messages": []}, {"prompt": "a", "messages": [{}]}])
def test_other_bodies_have_none(body: dict[str, Any]) -> None:
    assert plain_prompt(body) is None


@pytest.mark.parametrize(
    ("prompt", "first", "later", "ids"),
    [
        ("text", ["text"], [], 0),
        (["one", "two"], ["one", "two"], [], 0),
        ([1, 2, 3], [], [], 3),
        ([[1, 2], [3]], [], [], 3),
        ([], [], [], 0),
        # llama.cpp's: one prompt of both, and several prompts of several kinds.
        (["begin", 1, "more"], ["begin"], ["more"], 1),
        ([1, "more"], [], ["more"], 1),
        (["one", [1, "more"], [2, 3]], ["one"], ["more"], 3),
    ],
)
def test_texts_and_ids(prompt: Any, first: list[str], later: list[str], ids: int) -> None:
    found = plain_prompt({"prompt": prompt})
    assert found is not None
    assert (found.first, found.later, found.ids) == (first, later, ids)
    assert not found.unsure


@pytest.mark.parametrize(
    "prompt", [7.5, True, {}, [None], [[True]], [["a", {}]], [[[1]]], {"prompt_string": "a"}]
)
def test_what_is_no_prompt_is_doubted(prompt: Any) -> None:
    found = plain_prompt({"prompt": prompt})
    assert found is not None
    assert list(found.unsure) == ["a prompt that is neither text nor token ids"]


@pytest.mark.parametrize("key", ["suffix", "prompt_embeds", "truncate_prompt_tokens"])
def test_what_is_not_followed_is_doubted(key: str) -> None:
    found = plain_prompt({"prompt": "a", key: 1})
    assert found is not None
    assert len(found.unsure) == 1
    found = plain_prompt({"prompt": "a", key: None})
    assert found is not None
    assert not found.unsure
