"""Rendering requests as the server would: what a template is given, and what it may say."""

import copy
import json
from datetime import datetime
from typing import Any

import pytest

pytest.importorskip("jinja2")

from proxy.tokens.template import ChatTemplate, Prompt
from proxy.tokens.template_jinja import environment, takes_parts
from proxy.tokens.template_request import ServerFlags, TemplateRefused

MACRO = "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}"
PRINTED = "{{ messages | tojson }}"
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def template(source: str, flags: ServerFlags | None = None, **special: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special, flags)


def render(source: str, *messages: dict[str, Any], **body: Any) -> str:
    return template(source).render({"messages": list(messages), **body}).text


def given(*messages: dict[str, Any], **body: Any) -> Any:
    """What a template sees as `messages`."""
    return json.loads(render(PRINTED, *messages, **body))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# ---- jinja ----


def test_a_small_conversation() -> None:
    assert render(CHATML, user("Hi")) == "<|user|>Hi</s><|assistant|>"
    assert render(CHATML, user("Hi"), add_generation_prompt=False) == "<|user|>Hi</s>"


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    source = "{% for m in messages %}\n    {% if loop.index > 1 %}\n{% break %}\n{% endif %}\n"
    source += "{{ m.content }}\n{% endfor %}"
    assert render(source, user("a"), user("b")) == "a\n"


def test_json_is_printed_as_python_prints_it() -> None:
    call = {"b": "é<&>'", "a": [1, 1.0, None]}
    source = "{{ x | tojson }}|{{ x | tojson(indent=1) }}|{{ x | tojson(sort_keys=true, ensure_ascii=true) }}"
    expected = f"{json.dumps(call, ensure_ascii=False)}|{json.dumps(call, ensure_ascii=False, indent=1)}|"
    expected += json.dumps(call, sort_keys=True)
    assert render(source, user(""), chat_template_kwargs={"x": call}) == expected


def test_the_clock_is_an_input() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    made = ChatTemplate({"default": source}, {}, clock=lambda: datetime(2024, 7, 26, 12))
    assert made.render({"messages": [user("")]}).text == "26 Jul 2024"


def test_text_marked_as_generated_is_text() -> None:
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!", user("a")) == "a!"


def test_nothing_can_be_changed_or_reached_from_a_template() -> None:
    for source in (
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].update({'a': 1}) }}",
    ):
        with pytest.raises(TemplateRefused):
            render(source + "{{ [].__class__.mro() }}", user("a"))


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateRefused, match=r"^Roles must alternate$"):
        render("{{ raise_exception('Roles must alternate') }}", user("a"))
    with pytest.raises(TemplateRefused) as refused:
        render("{{ raise_exception(messages[0].content) }}", user("long" * 1000))
    assert len(str(refused.value)) == 300


def test_a_template_that_breaks_refuses() -> None:
    for source in ("{{ messages[3].content + 'x' }}", "{{ 1 / 0 }}", "{{ none.x.y }}", "{{ none[0] + 1 }}"):
        with pytest.raises(TemplateRefused):
            render(source, user("a"))


def test_special_tokens_are_strings_and_may_be_absent() -> None:
    made = template("{{ bos_token }}{{ eos_token }}|", bos_token="<s>")
    assert made.render({"messages": [user("")]}).text == "<s>|"


# ---- content ----


def test_content_as_one_string() -> None:
    parts = [
        {"type": "text", "text": "a"},
        "b",
        {"type": "text", "text": ""},
        {"type": "input_text", "text": "c"},
    ]
    assert given(user(parts)) == [user("a\nb\nc")]
    assert given({"role": "assistant"}) == [{"role": "assistant", "content": ""}]
    assert given(user([{"type": "text", "text": None}, {"type": "refusal", "refusal": "no"}])) == [user("no")]


def test_llama_cpp_keeps_empty_parts() -> None:
    made = template(CHATML, ServerFlags(server="llama.cpp"))
    parts = [{"type": "text", "text": text} for text in ("", "a", "")]
    assert made.render({"messages": [user(parts)]}) == Prompt("<|user|>a\n</s><|assistant|>")


def test_content_as_parts() -> None:
    source = "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}" + PRINTED
    parts = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "thinking", "thinking": ""},
    ]
    [one, two, three, four] = json.loads(
        render(source, user(parts), user("b"), {"role": "tool", "content": parts}, {"role": "assistant"})
    )
    assert one == user([{"type": "text", "text": "a"}, {"type": "text", "text": ""}])
    assert two == user([{"type": "text", "text": "b"}])
    assert three == {"role": "tool", "content": "a\n"}
    assert four == {"role": "assistant", "content": []}


def test_the_format_of_content_can_be_forced() -> None:
    flags = ServerFlags(chat_template_content_format="openai")
    text = template(PRINTED, flags).render({"messages": [user("a")]}).text
    assert json.loads(text) == [user([{"type": "text", "text": "a"}])]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] | reverse %}{% endfor %}{% endfor %}", True),
        ("{% set l = messages[1:] %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% set messages = messages %}{% for m in messages %}{% endfor %}", False),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}", True),
        (MACRO + "{% for m in messages %}{{ f(m.content) }}{% endfor %}", True),
        (MACRO + "{% for m in messages %}{{ f(x=m.content) }}{% endfor %}", True),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f('ab') }}", False),
        ("{% for m in messages %}{% for k, v in m.content %}{% endfor %}{% endfor %}", False),
        ("{% set a, b = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", False),
    ],
)  # fmt: skip
def test_templates_that_loop_over_content_take_parts(source: str, expected: bool) -> None:
    assert takes_parts(environment(datetime.now).parse(source)) is expected


def test_media_are_placeholders_and_unsure() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    prompt = template(CHATML).render({"messages": [user([image, image, {"type": "text", "text": "b"}])]})
    assert prompt == Prompt("<|user|>b</s><|assistant|>", ("image input, counted as its placeholder",))
    source = "{% for m in messages %}{% for c in m.content %}<{{ c.type }}>{% endfor %}{% endfor %}"
    sound = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    prompt = template(source).render({"messages": [user([image, {"image_url": "x", "uuid": "1"}, sound])]})
    assert prompt.text == "<image><image><audio>"
    assert len(prompt.unsure) == 2


def test_claude_codes_changing_line_is_left_out() -> None:
    line = "x-anthropic-billing-header: cch=12ab"
    assert given({"role": "system", "content": f"{line}\nYou"})[0]["content"] == "You"
    assert (
        given({"role": "system", "content": [{"type": "text", "text": line}, {"type": "text", "text": "a"}]})[
            0
        ]["content"]
        == "a"
    )
    assert given(user(line)) == [user(line)]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        [],
        ["text"],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
        [user(1)],
        [user([1])],
        [user([{"type": "nothing"}])],
        [user([{"type": "input_text"}])],
        [{"role": "assistant", "tool_calls": 1}],
        [{"role": "assistant", "tool_calls": [1]}],
        [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}],
    ],
)
def test_what_no_server_takes_is_refused(messages: Any) -> None:
    with pytest.raises(TemplateRefused):
        template(CHATML).render({"messages": messages})


# ---- calls, reasoning, names, roles ----


def test_tool_calls_are_rebuilt_in_the_servers_order() -> None:
    function = {"name": "f", "arguments": '{"b": 1, "a": "é"}', "extra": 1}
    call = {"index": 0, "type": "function", "function": function, "id": "x"}
    [message] = given({"role": "assistant", "content": None, "tool_calls": [call]})
    assert json.dumps(message, ensure_ascii=False) == (
        '{"role": "assistant", "content": "", "tool_calls": [{"id": "x", '
        '"function": {"arguments": {"b": 1, "a": "é"}, "name": "f"}, "type": "function"}]}'
    )


@pytest.mark.parametrize("arguments", ["", None, "not JSON", "[1]", "12", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_an_empty_one(arguments: Any) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}
    [message] = given({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_no_calls_are_no_field() -> None:
    assert given({"role": "assistant", "content": "a", "tool_calls": []}) == [
        {"role": "assistant", "content": "a"}
    ]


def test_reasoning_has_every_name() -> None:
    for key in ("reasoning", "reasoning_content"):
        [message] = given({"role": "assistant", "content": "a", key: "r"})
        assert [message[name] for name in ("reasoning", "reasoning_content", "thinking")] == ["r"] * 3
    assert "thinking" not in given(user("a") | {"reasoning": "r"})[0]


def test_names_and_ids_are_kept_where_they_belong() -> None:
    [one, two] = given(
        user("a") | {"name": "bob", "tool_call_id": "x"}, {"role": "tool", "tool_call_id": "x"}
    )
    assert one == user("a") | {"name": "bob"}
    assert two == {"role": "tool", "content": "", "tool_call_id": "x"}


def test_developers_are_systems_where_a_template_does_not_know_them() -> None:
    developer = {"role": "developer", "content": "a"}
    assert given(developer, user("b")) == [{"role": "system", "content": "a"}, user("b")]
    assert given(user("b"), developer, {"role": "system", "content": "c"}) == [
        {"role": "system", "content": "a\n\nc"},
        user("b"),
    ]
    known = "{# 'developer' #}" + PRINTED
    assert json.loads(render(known, developer)) == [developer]


# ---- tools and variables ----


def test_tools_are_printed_with_nulls_and_without_extras() -> None:
    tools = [
        {
            "function": {"parameters": {"type": "object"}, "name": "f", "extra": 1},
            "type": "function",
            "extra": 1,
        },
        {
            "type": "function",
            "function": {"name": "g", "strict": True, "description": "d"},
            "defer_loading": True,
        },
    ]
    assert render("{{ tools | tojson }}", user(""), tools=tools) == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}, '
        '{"type": "function", "function": {"name": "g", "description": "d", "parameters": null, "strict": true, '
        '"defer_loading": true}, "defer_loading": true}]'
    )


def test_tool_choice_none_keeps_tools_unless_the_server_says_otherwise() -> None:
    body = {"messages": [user("")], "tools": [{"function": {"name": "f"}}], "tool_choice": "none"}
    source = "{{ 'with' if tools else 'without' }}"
    assert template(source).render(body).text == "with"
    flags = ServerFlags(exclude_tools_when_tool_choice_none=True)
    assert template(source, flags).render(body).text == "without"


def test_the_template_for_tools() -> None:
    made = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    assert made.render({"messages": [user("")]}).text == "plain"
    assert made.render({"messages": [user("")], "tools": [{"function": {"name": "f"}}]}).text == "tools"
    with pytest.raises(TemplateRefused, match="no default among the templates rag"):
        ChatTemplate({"rag": ""}, {}).render({"messages": [user("")]})


def test_variables_of_the_request_win_over_the_servers() -> None:
    flags = ServerFlags(default_chat_template_kwargs={"enable_thinking": False, "style": "plain"})
    made = template("{{ enable_thinking }} {{ style }} {{ documents }}", flags)
    assert made.render({"messages": [user("")]}).text == "False plain None"
    body = {
        "messages": [user("")],
        "chat_template_kwargs": {"enable_thinking": True, "style": None},
        "documents": [{"title": "t", "text": "x"}],
    }
    assert made.render(body).text == "True plain [{'title': 't', 'text': 'x'}]"


def test_reasoning_effort_switches_thinking() -> None:
    source = "{{ reasoning_effort }} {{ enable_thinking }}"
    assert render(source, user(""), reasoning_effort="high") == "high True"
    assert render(source, user(""), reasoning_effort="none") == "none False"
    asked = {"enable_thinking": False}
    assert render(source, user(""), reasoning_effort="high", chat_template_kwargs=asked) == "high False"


@pytest.mark.parametrize(
    "body",
    [
        {"chat_template": "x"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": []}},
        {"tools": 1},
        {"tools": [1]},
        {"tools": [{"type": "function"}]},
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": True},
    ],
)
def test_requests_that_the_server_refuses(body: dict[str, Any]) -> None:
    with pytest.raises(TemplateRefused):
        render(CHATML, user("a"), **body)


def test_nothing_given_is_changed() -> None:
    body = {
        "messages": [
            user([{"type": "text", "text": "a"}]),
            {"role": "developer", "content": "d", "tools": []},
        ],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    before = copy.deepcopy(body)
    template(CHATML).render(body)
    assert body == before


# ---- continuing ----

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


def test_the_last_message_stays_open() -> None:
    last = {"role": "assistant", "content": "The answer is "}
    assert render(CHATML, user("a"), last, **CONTINUE) == "<|user|>a</s><|assistant|>The answer is "
    stripped = CHATML.replace("m['content']", "m['content'].strip()")
    assert render(stripped, user("a"), last, **CONTINUE) == "<|user|>a</s><|assistant|>The answer is"
    parts = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}</s>{% endfor %}"
    assert render(parts, user(["a", "b"]), **CONTINUE) == "ab"


def test_a_message_that_is_not_rendered_cannot_be_continued() -> None:
    for source in ("nothing", "{# content #}"):
        with pytest.raises(TemplateRefused):
            render(source, user("a"), **CONTINUE)


def test_names_tell_templates_apart() -> None:
    assert template("a").name == template("a").name
    assert template("a").name != template("b").name
    assert template("a").name != template("a", bos_token="<s>").name
    assert template("a").name != template("a", ServerFlags(default_chat_template_kwargs={"x": 1})).name


@pytest.mark.parametrize("asked", [{"truncate_prompt_tokens": 5}, {"add_special_tokens": True}])
def test_what_a_request_may_ask_of_vllm_that_is_not_followed(asked: dict[str, Any]) -> None:
    assert len(template(CHATML).render({"messages": [user("Hi")], **asked}).unsure) == 1
    assert template(CHATML).render({"messages": [user("Hi")], **dict.fromkeys(asked)}).unsure == ()
