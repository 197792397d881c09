from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from backends.errors import BadReply
from backends.oracle import LlamaOracle, VllmOracle, chat_question

MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_chat_is_asked_about_under_the_name_that_the_server_knows() -> None:
    body = {"model": "ours", "messages": MESSAGES, "temperature": 0, "stream": True, "max_tokens": 3}
    assert chat_question(body, "theirs") == {"model": "theirs", "messages": MESSAGES}


def test_what_a_chat_hands_to_the_template_goes_along() -> None:
    body = {
        "messages": MESSAGES,
        "tools": [1],
        "documents": [{"text": "x"}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    assert chat_question(body, "m") == {
        "model": "m",
        "messages": MESSAGES,
        "tools": [1],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template_kwargs": {
            "a": 1,
            "documents": [{"text": "x"}],
            "reasoning_effort": "low",
            "enable_thinking": True,
        },
    }


def test_thinking_that_the_client_has_set_stays() -> None:
    body = {
        "messages": MESSAGES,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert chat_question(body, "m")["chat_template_kwargs"]["enable_thinking"] is False


@pytest.mark.parametrize("answer", [{}, {"count": None}, {"count": "3"}, {"count": True}])
async def test_an_answer_without_a_number_is_a_bad_reply(answer: dict[str, Any]) -> None:
    async def ask(path: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
        return answer

    with pytest.raises(BadReply):
        await VllmOracle(ask, "m").prompt_tokens({"messages": MESSAGES})
    with pytest.raises(BadReply):
        await LlamaOracle(ask).text_tokens("x")


async def test_a_plain_prompt_is_asked_about_with_what_completions_add() -> None:
    asked: list[tuple[str, Mapping[str, Any] | None]] = []

    async def ask(path: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
        asked.append((path, question))
        return {"count": 3, "tokens": [1, 2, 3]}

    assert await LlamaOracle(ask).prompt_tokens({"prompt": "hi"}) == 3
    assert await VllmOracle(ask, "m").prompt_tokens({"prompt": "hi"}) == 3
    assert await VllmOracle(ask, "m").prompt_tokens({"prompt": "hi", "add_special_tokens": False}) == 3
    assert asked == [
        ("/tokenize", {"content": "hi", "add_special": True}),
        ("/tokenize", {"model": "m", "prompt": "hi", "add_special_tokens": True}),
        ("/tokenize", {"model": "m", "prompt": "hi", "add_special_tokens": False}),
    ]
