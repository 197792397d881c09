"""What llama.cpp does otherwise than vLLM: the prompts are what its `/apply-template` answered."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jinja2")

from proxy.tokens.template import ChatTemplate, Prompt
from proxy.tokens.template_request import ServerFlags, TemplateRefused

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = {"role": "user", "content": "U"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def render(*messages: dict[str, Any], source: str = CHATML, **body: Any) -> Prompt:
    made = ChatTemplate({"default": source}, {}, ServerFlags(server="llama.cpp"))
    return made.render({"messages": list(messages), **body})


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_developers_become_systems_where_they_stand() -> None:
    messages = ({"role": "system", "content": "S"}, USER, {"role": "developer", "content": "D"}, USER)
    expected = "<|system|>S</s><|user|>U</s><|system|>D</s><|user|>U</s><|assistant|>"
    assert render(*messages) == Prompt(expected)
    gpt_oss = CHATML + "{# <|channel|> #}"
    assert "<|developer|>D" in render(*messages, source=gpt_oss).text


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("A  ", "<|assistant|>A  "),
        (" \n", "<|assistant|> \n"),
        (parts("a", "b", "c"), "<|assistant|>a\n\nb\n\nc"),
        (parts("", "a"), "<|assistant|>a"),
        (parts("a", ""), "<|assistant|>a\n\n"),
        (parts("", ""), "<|assistant|>"),
        ("", ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_last_message_of_the_assistant_is_continued_unasked(content: Any, end: str) -> None:
    assert render(USER, assistant(content)) == Prompt("<|user|>U</s>" + end)


@pytest.mark.parametrize("asked", [{}, {"continue_final_message": True}, {"continue_final_message": False}])
def test_it_is_continued_whatever_is_said_of_the_generation_prompt(asked: dict[str, Any]) -> None:
    expected = Prompt("<|user|>U</s><|assistant|>A")
    assert render(USER, assistant("A"), add_generation_prompt=False, **asked) == expected


def test_what_is_continued_may_be_all_there_is_and_the_users() -> None:
    assert render(assistant("A")) == Prompt("<|assistant|>A")
    asked = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(USER, **asked) == Prompt("<|assistant|>U")


def test_reasoning_alone_has_a_generation_prompt() -> None:
    assert render(USER, assistant("", reasoning_content="hm")) == Prompt("<|user|>U</s><|assistant|>")


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([USER, assistant("A"), assistant("B")], {}),
        ([USER, assistant(None, tool_calls=[CALL])], {}),
        ([USER, assistant("A")], {"continue_final_message": True}),
        ([USER, assistant("A")], {"continue_final_message": "content", "add_generation_prompt": True}),
        ([], {}),
    ],
)
def test_what_it_refuses(messages: list[dict[str, Any]], body: dict[str, Any]) -> None:
    with pytest.raises(TemplateRefused):
        render(*messages, **body)


def test_documents_are_a_variable_of_the_template_only() -> None:
    source = "{{ documents }}"
    document = {"text": "x"}
    assert render(USER, source=source, documents=[document]).text == "None"
    asked = {"documents": [document], "chat_template_kwargs": {"documents": [1]}}
    assert render(USER, source=source, **asked).text == "[1]"


def test_a_template_that_reads_no_tools_is_sure_of_them() -> None:
    called = (USER, assistant("x", tool_calls=[CALL]), {"role": "tool", "content": "R", "tool_call_id": "1"})
    assert render(*called, tools=TOOLS).unsure == ()
    reads = CHATML + "{% if tools %}{% endif %}{% if messages[0].tool_calls %}{% endif %}"
    assert len(render(*called, tools=TOOLS, source=reads).unsure) == 1
    assert len(render(*called, source=reads).unsure) == 1
    assert render(USER, source=reads).unsure == ()


def test_a_template_that_thinks_is_not_sure_of_what_it_continues() -> None:
    thinks = CHATML + "{# <think> #}"
    assert len(render(USER, assistant("A"), source=thinks).unsure) == 1
    assert render(USER, source=thinks).unsure == ()
