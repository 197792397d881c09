"""Spans are exact and splices touch nothing else, over JSON texts with any spacing and any escapes."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.spans import (
    Splice,
    apply,
    keep_elements,
    scan_array,
    scan_object,
    set_member,
)


class Pairs(list[tuple[str, Any]]):
    """An object as its members in order, repeated keys and all."""


strings = st.text(st.characters(categories=None), max_size=8)  # lone surrogates, quotes, controls, all of it
# A few keys, so that they repeat.
keys = st.one_of(st.sampled_from(["messages", "model", "a", "ü", ""]), strings)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), strings),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.lists(st.tuples(keys, inner), max_size=5).map(Pairs)
    ),
    max_leaves=20,
)
objects = st.lists(st.tuples(keys, values), max_size=6).map(Pairs)
arrays = st.lists(values, max_size=8)
randoms = st.randoms(use_true_random=False)


def parse(text: str) -> Any:
    return json.loads(text, object_pairs_hook=Pairs, strict=False)


def space(random: Random) -> str:
    return "".join(random.choices(" \t\n\r", k=random.choice([0, 0, 1, 3])))


def write_string(value: str, random: Random) -> str:
    pieces = []
    for char in value:
        code = ord(char)
        if 0xD800 <= code < 0xE000 or (code < 0x10000 and random.random() < 0.2):
            pieces.append(f"\\u{code:04x}")
        else:
            pieces.append(json.dumps(char, ensure_ascii=random.random() < 0.3)[1:-1])
    return f'"{"".join(pieces)}"'


def write(value: Any, random: Random) -> str:
    """JSON of a value, spaced and escaped at random."""
    if isinstance(value, str):
        return write_string(value, random)
    if isinstance(value, Pairs):
        members = [
            f"{space(random)}{write_string(key, random)}{space(random)}:{space(random)}"
            f"{write(inner, random)}{space(random)}"
            for key, inner in value
        ]
        return "{" + (",".join(members) or space(random)) + "}"
    if isinstance(value, list):
        elements = [f"{space(random)}{write(inner, random)}{space(random)}" for inner in value]
        return "[" + (",".join(elements) or space(random)) + "]"
    return json.dumps(value)


def surrounded(value: Any, random: Random) -> str:
    return space(random) + write(value, random) + space(random)


# --- spans ---


@given(objects, randoms)
def test_members_are_where_they_are_said_to_be(members: Pairs, random: Random) -> None:
    text = surrounded(members, random)
    whole = parse(text)
    found = scan_object(text)
    assert [member.key for member in found] == [key for key, _ in whole]
    for member, (key, value) in zip(found, whole, strict=True):
        assert parse(text[member.value_start : member.value_end]) == value
        name, between = json.JSONDecoder(strict=False).raw_decode(text, member.start)
        assert name == key
        assert text[between : member.value_start].strip(" \t\n\r") == ":"


@given(arrays, randoms, st.text(max_size=5))
def test_elements_are_where_they_are_said_to_be(elements: list[Any], random: Random, after: str) -> None:
    text = space(random) + write(elements, random)
    spans = scan_array(text + after, text.index("["))
    assert [parse(text[start:end]) for start, end in spans] == parse(text)
    assert all(text[start:end].strip(" \t\n\r") == text[start:end] for start, end in spans)


# --- edits ---


@given(arrays.filter(bool), randoms, st.data())
def test_only_the_kept_elements_remain_byte_for_byte(
    elements: list[Any], random: Random, data: st.DataObject
) -> None:
    body = Pairs([("model", "m"), ("messages", elements), ("n", 1)])
    text = surrounded(body, random)
    array = scan_object(text)[1]
    spans = scan_array(text, array.value_start)
    kept = sorted(data.draw(st.sets(st.integers(0, len(spans) - 1))))
    out = apply(text, keep_elements(spans, iter(kept)))

    assert out.startswith(text[: spans[0][0]])
    assert out.endswith(text[spans[-1][1] :])
    whole = parse(text)[1][1]
    assert parse(out) == Pairs([("model", "m"), ("messages", [whole[i] for i in kept]), ("n", 1)])
    left = scan_array(out, array.value_start)
    assert [out[a:b] for a, b in left] == [text[a:b] for a, b in (spans[i] for i in kept)]
    for at in range(1, len(kept)):
        between = out[left[at - 1][1] : left[at][0]]
        neighbours = kept[at] == kept[at - 1] + 1
        assert between == (text[spans[kept[at] - 1][1] : spans[kept[at]][0]] if neighbours else ",")
    if len(kept) == len(spans):
        assert out == text


@given(objects, keys, values, randoms)
def test_set_member_changes_that_value_and_nothing_else(
    members: Pairs, key: str, value: Any, random: Random
) -> None:
    text = surrounded(members, random)
    value_json = write(value, random)
    found = scan_object(text)
    there = [number for number, (name, _) in enumerate(parse(text)) if name == key]
    if len(there) > 1:
        with pytest.raises(ValueError, match="key given twice"):
            set_member(text, found, key, value_json)
        return
    splice = set_member(text, found, key, value_json)
    out = apply(text, [splice])
    assert out == text[: splice.start] + splice.text + text[splice.end :]
    expected = parse(text)
    if there:
        expected[there[0]] = (key, parse(value_json))
        assert splice.text == value_json
    else:
        expected.insert(0, (key, parse(value_json)))
        assert splice.start == splice.end == text.index("{") + 1
    assert parse(out) == expected


@given(st.text(max_size=60), st.data())
def test_apply_is_the_same_in_any_order(text: str, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    splices = [
        Splice(a, b, data.draw(st.text(max_size=4))) for a, b in zip(edges[::2], edges[1::2], strict=False)
    ]
    expected = text
    for splice in reversed(splices):
        expected = expected[: splice.start] + splice.text + expected[splice.end :]
    assert apply(text, data.draw(st.permutations(splices))) == expected


def test_several_edits_of_one_body() -> None:
    text = '{ "model" : "m",\n "messages": [ {"role":"system"} , {"a":1},\t{"b":2} ,{"c":3} ]}'
    members = scan_object(text)
    spans = scan_array(text, members[1].value_start)
    edits = [
        *keep_elements(spans, [0, 2, 3]),
        set_member(text, members, "model", '"x"'),
        set_member(text, members, "max_tokens", "5"),
        set_member(text, members, "stream", "true"),
    ]
    assert apply(text, edits) == (
        '{"max_tokens":5,"stream":true, "model" : "x",\n "messages": [ {"role":"system"},{"b":2} ,{"c":3} ]}'
    )


def test_an_empty_object_takes_a_member() -> None:
    assert apply(" { } ", [set_member(" { } ", (), "a", "1")]) == ' {"a":1 } '


def test_an_escaped_key_is_the_same_key() -> None:
    text = r'{"m\u0061x_tokens":1}'
    assert apply(text, [set_member(text, scan_object(text), "max_tokens", "2")]) == r'{"m\u0061x_tokens":2}'


# --- refusals ---


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("[]", 0),
        ("{", 1),
        ('{"a"}', 4),
        ('{"a":}', 5),
        ('{"a":1', 6),
        ('{"a":01}', 6),
        ('{"a":1 "b":2}', 7),
        ('{"a":1,}', 7),
        ("{a:1}", 1),
        ('{"a":"x}', 5),
        ('{"a":[1,]}', 8),
        ('{"a":tru}', 5),
        ('{"a":"\\q"}', 6),
        ('{"a":1} x', 8),
        ("{}{}", 2),
        ('\ufeff{"a":1}', 0),
    ],
)
def test_malformed_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=rf"at character {position}$") as refused:
        scan_object(text)
    assert type(refused.value) is ValueError  # a JSONDecodeError would hold the whole text


@pytest.mark.parametrize(
    ("text", "position"), [("{}", 0), ("[", 1), ("[1", 2), ("[1 2]", 3), ("[1,", 3), ("[,]", 1)]
)
def test_malformed_arrays(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=rf"at character {position}$"):
        scan_array(text, 0)


def test_deep_nesting_is_a_value_error() -> None:
    deep = "[" * 200_000
    with pytest.raises(ValueError, match="nested too deeply at character 5"):
        scan_object('{"a":' + deep)
    with pytest.raises(ValueError, match="nested too deeply at character 1"):
        scan_array(deep, 0)
    with pytest.raises(ValueError, match="nested too deeply"):
        scan_array('[{"a":' * 200_000, 0)


def test_numbers_of_any_length_are_jumped_over() -> None:
    text = '{"a":' + "9" * 10_000 + ',"b":1e999,"c":NaN}'
    assert [text[m.value_start : m.value_end][:3] for m in scan_object(text)] == ["999", "1e9", "NaN"]


def test_control_characters_in_strings_pass() -> None:
    assert scan_object('{"a\n":"b\x00"}')[0].key == "a\n"


@pytest.mark.parametrize("kept", [[2], [-1], [1, 0], [0, 0]])
def test_wrong_elements_are_refused(kept: list[int]) -> None:
    with pytest.raises(ValueError, match="out of range or order"):
        keep_elements(scan_array("[1,2]", 0), kept)


def test_an_empty_array_has_no_elements_to_keep() -> None:
    with pytest.raises(ValueError, match="has none"):
        keep_elements([], [])


@pytest.mark.parametrize(
    "splices",
    [
        [Splice(0, 3, ""), Splice(2, 4, "")],
        [Splice(0, 9, "")],
        [Splice(-1, 2, "")],
        [Splice(3, 2, "")],
    ],
)
def test_overlapping_and_outlying_splices_are_refused(splices: list[Splice]) -> None:
    with pytest.raises(ValueError, match="overlaps another or leaves the text"):
        apply("12345", splices)


def test_an_insertion_may_touch_a_replacement() -> None:
    assert apply("abc", [Splice(1, 2, "B"), Splice(1, 1, "-"), Splice(2, 2, "+")]) == "a-B+c"
