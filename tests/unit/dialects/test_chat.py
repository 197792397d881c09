"""The typed view of a chat body: what is wrong is named by its place, what is edited changes nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import body, chat, spans
from proxy.dialects.chat import CHAT
from proxy.dialects.prompt import Edits, Prompt
from proxy.errors import InvalidJson, InvalidRequest
from tests.unit.dialects.test_spans import Pairs, keys, randoms, space, values, write, write_string

MESSAGES = [{"role": "user", "content": "hi"}]


def read(**fields: Any) -> Prompt:
    return CHAT.parse(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())


def refusal(raw: bytes) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        CHAT.parse(raw)
    assert caught.value.http_status == 400
    return caught.value.param, caught.value.message


def refused(**fields: Any) -> tuple[str | None, str]:
    return refusal(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())


# --- what is read ---


def test_a_plain_request() -> None:
    prompt = read()
    assert (prompt.model, list(prompt.messages)) == ("m", MESSAGES)
    assert (prompt.stream, prompt.asks_usage, prompt.caps) == (False, False, {})


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": False}, False),
        ({"include_usage": None}, False),
        ({"include_usage": True}, True),
        ({"include_obfuscation": False, "include_usage": True}, True),
    ],
)
def test_who_asks_for_usage(options: Any, asks: bool) -> None:
    assert read(stream=True, stream_options=options).asks_usage is asks


@pytest.mark.parametrize(
    ("fields", "caps"),
    [
        ({}, {}),
        ({"max_tokens": None, "max_completion_tokens": None}, {}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6}, {"max_completion_tokens": 6}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 5, "max_completion_tokens": 6}),
        (
            {"max_tokens": 5, "max_completion_tokens": None, "n_predict": -1},
            {"max_tokens": 5, "n_predict": -1},
        ),
    ],
)
def test_the_fields_that_cap(fields: dict[str, Any], caps: dict[str, int]) -> None:
    assert read(**fields).caps == caps


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ["text", {"type": "text", "text": "x"}, {}]}],
        [{"role": "", "content": "x"}],
        [{"role": "judge", "content": "x", "more": {"a": [1]}}],
        [{"role": "tool", "content": "x", "tool_call_id": 7}],
        [{"role": "assistant", "tool_calls": "none"}],
    ],
)
def test_odd_messages_are_for_the_upstream_to_judge(messages: list[Any]) -> None:
    assert list(read(messages=messages).messages) == messages


@pytest.mark.parametrize(
    ("model", "is_it"),
    [
        ("o1", True),
        ("o3-mini", True),
        ("o4-mini-2025-04-16", True),
        ("gpt-5", True),
        ("gpt-5-nano", True),
        ("openai/gpt-5.1", True),
        ("ft:o3-mini:org", True),
        ("GPT-5", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4o", False),
        ("o1x", False),
        ("olmo-2", False),
        ("opus", False),
        ("my-o3", False),
    ],
)
def test_reasoning_models(model: str, is_it: bool) -> None:
    assert chat.is_reasoning(model) is is_it


# --- what is refused, with its place ---


@pytest.mark.parametrize(
    ("fields", "place", "says"),
    [
        ({"model": None}, "model", "null"),
        ({"model": ""}, "model", "non-empty"),
        ({"model": 4}, "model", "a number"),
        ({"model": ["m"]}, "model", "an array"),
        ({"model": "a\r\nb"}, "model", "printable"),
        ({"model": "a\ud800"}, "model", "printable"),
        ({"model": "a\x00"}, "model", "printable"),
        ({"model": "a" * 501}, "model", "at most 500"),
        ({"messages": None}, "messages", "null"),
        ({"messages": "hi"}, "messages", "a string"),
        ({"messages": {}}, "messages", "an object"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": ["hi"]}, "messages[0]", "a string"),
        ({"messages": [*MESSAGES, None]}, "messages[1]", "null"),
        ({"messages": [[]]}, "messages[0]", "an array"),
        ({"messages": [{}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": None}]}, "messages[0].role", "null"),
        ({"messages": [{"role": 1}]}, "messages[0].role", "a number"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "a number"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", "an object"),
        ({"messages": [{"role": "user", "content": False}]}, "messages[0].content", "a boolean"),
        ({"messages": [{"role": "user", "content": ["x", 1]}]}, "messages[0].content[1]", "a number"),
        ({"messages": [{"role": "user", "content": [[]]}]}, "messages[0].content[0]", "an array"),
        ({"messages": [{"role": "user", "content": [None]}]}, "messages[0].content[0]", "null"),
        ({"stream": "true"}, "stream", "a string"),
        ({"stream": 1}, "stream", "a number"),
        ({"stream_options": True}, "stream_options", "a boolean"),
        ({"stream_options": []}, "stream_options", "an array"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(fields: dict[str, Any], place: str, says: str) -> None:
    param, message = refused(**fields)
    assert param == place
    assert message.startswith(place)
    assert says in message


def test_what_is_missing_is_named() -> None:
    assert refusal(b"{}") == ("model", "model must be a non-empty string, not missing")
    assert refusal(b'{"model":"m"}') == ("messages", "messages must be an array, not missing")


def test_a_refusal_never_quotes_text() -> None:
    _, message = refused(messages=[{"role": {"a": "secret"}, "content": "secret"}])
    assert "secret" not in message


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"model":"m","messages":[NaN]}'])
def test_what_is_no_json_is_no_request(raw: bytes) -> None:
    with pytest.raises(InvalidJson):
        CHAT.parse(raw)


# --- keys given twice ---

REST = '"messages":[{"role":"user","content":"x"}]'


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (f'{{"model":"m","model":"n",{REST}}}', "model"),
        (f'{{"model":"m","mod\\u0065l":"n",{REST}}}', "model"),
        (f'{{"\\u006dodel":"n","model":"m",{REST}}}', "model"),
        (f'{{"model":"m",{REST},{REST}}}', "messages"),
        (f'{{"model":"m",{REST},"max_tokens":1,"max_tokens":9}}', "max_tokens"),
        (f'{{"model":"m",{REST},"max_tokens":1,"max\\u005Ftokens":9}}', "max_tokens"),
        (f'{{"model":"m",{REST},"stream":true,"stream":false}}', "stream"),
        (f'{{"model":"m",{REST},"stream_options":{{}},"stream_options":null}}', "stream_options"),
    ],
)
def test_an_enforced_key_given_twice_is_refused(raw: str, key: str) -> None:
    assert refusal(raw.encode()) == (key, f"the key {key!r} is given twice")


@pytest.mark.parametrize(
    "raw",
    [
        f'{{"model":"m",{REST},"user":"a","user":"b"}}',
        f'{{"model":"m",{REST},"metadata":{{"model":"x","model":"y"}}}}',
        '{"model":"m","messages":[{"role":"user","content":"\\"model\\": \\"model\\" \\u0041"}]}',
        f'{{"mod\\u0065l":"m",{REST}}}',
    ],
)
def test_other_repetitions_pass(raw: str) -> None:
    assert CHAT.parse(raw.encode()).model == "m"


# --- edits ---


def test_without_edits_the_same_bytes_go_on() -> None:
    prompt = read()
    assert Edits().none
    assert CHAT.encode(prompt, Edits()) is prompt.raw
    # A field alone, without a cap, is no edit.
    assert CHAT.encode(prompt, Edits()) is prompt.raw


USAGE = '{"include_usage":true}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{%s}", f'{{"stream_options":{USAGE},%s}}'),
        (' {"stream_options":null,%s}', f' {{"stream_options":{USAGE},%s}}'),
        ('{%s, "stream_options" : {} }', f'{{%s, "stream_options" : {USAGE} }}'),
        ('{"stream_options":{ },%s}', '{"stream_options":{"include_usage":true },%s}'),
        ('{"stream_options":{"include_usage": false},%s}', '{"stream_options":{"include_usage": true},%s}'),
        ('{"stream_options":{"a":[1]},%s}', '{"stream_options":{"include_usage":true,"a":[1]},%s}'),
        (
            '{"stream_options":{"includ\\u0065_usage":0},%s}',
            '{"stream_options":{"includ\\u0065_usage":true},%s}',
        ),
        ('{"stre\\u0061m_options":null,%s}', f'{{"stre\\u0061m_options":{USAGE},%s}}'),
    ],
)
def test_usage_is_asked_for_in_every_way(before: str, after: str) -> None:
    rest = f'"model":"m",{REST},"stream":true'
    prompt = CHAT.parse((before % rest).encode())
    assert CHAT.encode(prompt, Edits(add_usage=True)) == (after % rest).encode()


def test_usage_given_twice_is_refused() -> None:
    raw = f'{{"model":"m",{REST},"stream_options":{{"include_usage":false,"include_usage":false}}}}'
    prompt = CHAT.parse(raw.encode())
    with pytest.raises(InvalidRequest, match="include_usage"):
        CHAT.encode(prompt, Edits(add_usage=True))


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        ("{%s}", Edits(caps={"max_tokens": 5}), '{"max_tokens":5,%s}'),
        ('{%s,"max_tokens":\t9}', Edits(caps={"max_tokens": 5}), '{%s,"max_tokens":\t5}'),
        (
            '{"max_tokens":8,%s,"max_completion_tokens":9}',
            Edits(caps={"max_completion_tokens": 5}),
            '{"max_tokens":8,%s,"max_completion_tokens":5}',
        ),
        ('{"max_tokens":null,%s}', Edits(caps={"max_tokens": 5}), '{"max_tokens":5,%s}'),
        (
            '{"max_tokens":null,%s}',
            Edits(caps={"max_completion_tokens": 5}),
            '{"max_completion_tokens":5,"max_tokens":null,%s}',
        ),
    ],
)
def test_the_cap_goes_where_it_is_or_to_the_front(before: str, edits: Edits, after: str) -> None:
    rest = f'"model":"m",{REST}'
    assert CHAT.encode(CHAT.parse((before % rest).encode()), edits) == (after % rest).encode()


def test_a_body_too_deep_to_be_edited_is_refused_as_that() -> None:
    deep = f'{{"model":"m",{REST},"x":{"[" * 1000}{"]" * 1000}}}'
    prompt = CHAT.parse(deep.encode())
    with pytest.raises(InvalidRequest, match="cannot be edited: nested too deeply"):
        CHAT.encode(prompt, Edits(model="n"))


ENFORCED = (
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "stream",
    "stream_options",
)
others = st.lists(st.tuples(keys.filter(lambda key: key not in ENFORCED), values), max_size=4)
messages = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "judge"]), st.text(st.characters(categories=None)), others
    ),
    min_size=1,
    max_size=6,
)


@given(others, messages, st.booleans(), st.booleans(), randoms, st.data())
def test_an_edit_leaves_every_other_byte_as_it_was(
    extra: list[tuple[str, Any]],
    conversation: list[tuple[str, str, list[tuple[str, Any]]]],
    has_cap: bool,
    has_options: bool,
    random: Random,
    data: st.DataObject,
) -> None:
    fields: list[tuple[str, Any]] = [
        ("model", "mödel"),
        (
            "messages",
            [
                Pairs(
                    [
                        ("role", role),
                        ("content", text),
                        *((k, v) for k, v in more if k not in ("role", "content")),
                    ]
                )
                for role, text, more in conversation
            ],
        ),
        *([("max_tokens", 9)] if has_cap else []),
        *([("stream_options", Pairs([("x", 1)]))] if has_options else []),
        *extra,
    ]
    random.shuffle(fields)
    # Each member as (up to its value, its value, what follows), so that what is expected can be put together.
    parts = [
        (
            space(random) + write_string(key, random) + space(random) + ":" + space(random),
            write(value, random),
        )
        for key, value in fields
    ]
    before, after = space(random), space(random)
    text = before + "{" + ",".join(head + value for head, value in parts) + "}" + after
    if "Infinity" in text:
        return
    prompt = CHAT.parse(body.encode(text))
    edits = Edits(
        kept=data.draw(
            st.none()
            | st.sets(st.integers(0, len(conversation) - 1), min_size=1).map(lambda chosen: sorted(chosen))
        ),
        model=data.draw(st.none() | st.just("other/modèle")),
        caps=data.draw(st.just({}) | st.just({"max_tokens": 4})),
        add_usage=data.draw(st.booleans()),
    )
    out = body.decode(CHAT.encode(prompt, edits))

    inserted = ""
    expected = []
    for (head, value), (key, _) in zip(parts, fields, strict=True):
        new = value
        if key == "model" and edits.model:
            new = json.dumps(edits.model, ensure_ascii=False)
        if key == "max_tokens" and edits.caps:
            new = "4"
        if key == "stream_options" and edits.add_usage:
            new = '{"include_usage":true,' + value[1:]
        if key == "messages" and edits.kept is not None:
            new = kept_elements(value, edits.kept)
        expected.append(head + new)
    if edits.caps and not has_cap:
        inserted += '"max_tokens":4,'
    if edits.add_usage and not has_options:
        inserted += '"stream_options":{"include_usage":true},'
    assert out == before + "{" + inserted + ",".join(expected) + "}" + after


def kept_elements(array: str, kept: Sequence[int]) -> str:
    found = spans.scan_array(array, 0)
    out = array[: found[0][0]]
    for n, index in enumerate(kept):
        if n:
            neighbours = kept[n - 1] == index - 1
            out += array[found[index - 1][1] : found[index][0]] if neighbours else ","
        out += array[found[index][0] : found[index][1]]
    return out + array[found[-1][1] :]
