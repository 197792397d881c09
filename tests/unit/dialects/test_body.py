"""A body is read as what it is, or refused with the reason: JSON's corner cases, codings, bombs."""

from __future__ import annotations

import gzip
import json
import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import body
from proxy.errors import InvalidJson, InvalidRequest, TooLarge, UnsupportedEncoding
from tests.unit.dialects.test_spans import Pairs, keys, randoms, strings, surrounded

LIMIT = 10_000
# Within what orjson reads exactly: an integer of more than 64 bits becomes a float.
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    strings,
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.lists(st.tuples(keys, inner), max_size=5).map(Pairs)
    ),
    max_leaves=20,
)
objects = st.lists(st.tuples(keys, _values), max_size=6).map(Pairs)


def nested(depth: int, inner: bytes = b"") -> bytes:
    return b'{"a":' + b"[" * depth + inner + b"]" * depth + b"}"


# --- what is JSON ---


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b' \r\n\t{ "a" : 1 } \n', {"a": 1}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":"\\u00e9\\ud83d\\ude00"}', {"a": "é😀"}),
        ('{"a":"é😀"}'.encode(), {"a": "é😀"}),
        (b'{"a":"\\ud800"}', {"a": "\ud800"}),
        (b'{"a":"\\ude00\\ud83d"}', {"a": "\ude00\ud83d"}),
        (b'{"a":"\xed\xa0\x80"}', {"a": "\ud800"}),
        (b'{"a":18446744073709551615}', {"a": 18446744073709551615}),
        (b'{"a":-0.0,"b":1E2,"c":true,"d":null}', {"a": 0.0, "b": 100.0, "c": True, "d": None}),
        (b'{"a":"\\ud800","b":123456789012345678901234567890}', None),
        (b'{"a":' + b"9" * 300 + b"}", None),
        (nested(1000), None),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, None),
    ],
    ids=range(14),
)
def test_json_is_read(raw: bytes, value: dict[str, Any] | None) -> None:
    found = body.parse(raw)
    assert isinstance(found, dict)
    if value is not None:
        assert found == value


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"{", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":1,}', "char 7"),
        (b'{"a":1}{', "char 7"),
        (b"{}\x00", "not JSON"),
        (b'{"a":"x\ny"}', "control character"),
        (b'{"a":01}', "not JSON"),
        (b'{"a":"\\x41"}', "not JSON"),
        (b"hello", "not JSON"),
        (b"\x1f\x8b\x08\x00", "not UTF-8: byte 1 is 0x8b"),
        (b'{"a":"\xff"}', "not UTF-8: byte 6 is 0xff"),
        (b'{"a":"\xc3"}', "not UTF-8"),
        (b'{"a":"\xf0\x9f\x98"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "BOM"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b'{"a":Infinity}', "Infinity is not"),
        (b'{"a":[-Infinity]}', "-Infinity is not"),
        (b'{"a":"\\ud800","b":NaN}', "NaN is not"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
        (nested(100_000), "nested too deep"),
        (nested(100_000, b'"\\ud800"'), "nested too deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
        (b"[" * 100_000, "nested too deep"),
    ],
    ids=range(26),
)
def test_what_is_not_json_is_told(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidJson, match=says) as caught:
        body.parse(raw)
    assert caught.value.http_status == 400
    assert caught.value.error_code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"null", "null"),
        (b"true", "a boolean"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b'"secret text"', "a string"),
        (b"[]", "an array"),
    ],
)
def test_only_an_object_will_do(raw: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"must be a JSON object, not {what}$") as caught:
        body.parse(raw)
    assert caught.value.error_code == "invalid_request"


def test_a_message_about_bad_json_never_quotes_it() -> None:
    with pytest.raises(InvalidJson) as caught:
        body.parse(b'{"messages":"my secret text')
    assert "secret" not in caught.value.message


@given(objects, randoms)
def test_any_object_is_read_as_the_standard_library_reads_it(members: Pairs, random: Random) -> None:
    text = surrounded(members, random)
    assert body.parse(body.encode(text)) == json.loads(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        value: Any = body.parse(raw)
    except InvalidRequest:
        return
    assert isinstance(value, dict)


@given(st.text(st.characters(categories=None)))
def test_decoding_and_encoding_again_gives_the_same_bytes(text: str) -> None:
    raw = body.encode(text)
    assert body.encode(body.decode(raw)) == raw


# --- keys that may repeat ---


@pytest.mark.parametrize(
    ("raw", "may"),
    [
        (b'{"model":1}', False),
        (b'{"model":1,"model":2}', True),
        (b'{"model":1,"x":"\\"model\\""}', False),
        (b'{"model":1,"x":{"model":2}}', False),
        (b'{"model":1,"mod\\u0065l":2}', True),
        (b'{"model":1,"mod\\u0065L":2}', False),
        (b'{"model":"a","model":"b","x":"\\u0022\\u0022\\u0022\\u0022"}', True),
        (b'{"model":"a","model":"b","x":"\\ud83d"}', True),
        (b'{"model":1,"x":"caf\\u00e9"}', False),
        (b'{"model":1,"x":"\\u2028\\ud83d\\u000a"}', False),
    ],
)
def test_a_repeated_key_is_never_missed(raw: bytes, may: bool) -> None:
    assert body.may_repeat(raw, json.loads(raw), (b'"model"',)) is may


# --- codings ---

RAW = b'{"model":"gpt-4o"}' * 100


def test_codings_are_undone_in_reverse_order() -> None:
    assert body.unpack(RAW, [], LIMIT) == RAW
    assert body.unpack(gzip.compress(RAW), ["gzip"], LIMIT) == RAW
    assert body.unpack(gzip.compress(RAW), ["x-gzip"], LIMIT) == RAW
    assert body.unpack(zlib.compress(RAW), ["deflate"], LIMIT) == RAW
    assert body.unpack(gzip.compress(zlib.compress(RAW)), ["deflate", "identity", "gzip"], LIMIT) == RAW


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "deflate"]))
def test_what_was_packed_is_unpacked(raw: bytes, coding: str) -> None:
    packed = gzip.compress(raw) if coding == "gzip" else zlib.compress(raw)
    assert body.unpack(packed, [coding], LIMIT) == raw


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "rot13"])
def test_an_unknown_coding_is_415(coding: str) -> None:
    with pytest.raises(UnsupportedEncoding, match=coding) as caught:
        body.unpack(RAW, [coding], LIMIT)
    assert caught.value.http_status == 415


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_every_truncation_is_told(coding: str) -> None:
    packed = gzip.compress(RAW) if coding == "gzip" else zlib.compress(RAW)
    for end in range(len(packed)):
        with pytest.raises(InvalidRequest, match="cut off"):
            body.unpack(packed[:end], [coding], LIMIT)


@pytest.mark.parametrize(
    ("raw", "coding"),
    [(RAW, "gzip"), (RAW, "deflate"), (zlib.compress(RAW), "gzip"), (gzip.compress(RAW), "deflate")],
)
def test_what_is_not_packed_is_told(raw: bytes, coding: str) -> None:
    with pytest.raises(InvalidRequest, match=f"not valid {coding}"):
        body.unpack(raw, [coding], LIMIT)


def test_a_broken_checksum_is_told() -> None:
    packed = bytearray(gzip.compress(RAW))
    packed[-8] ^= 1
    with pytest.raises(InvalidRequest, match="not valid gzip"):
        body.unpack(bytes(packed), ["gzip"], LIMIT)


def test_nothing_may_follow_the_packed_body() -> None:
    for more in (b"x", gzip.compress(b"more")):
        with pytest.raises(InvalidRequest, match="gzip"):
            body.unpack(gzip.compress(RAW) + more, ["gzip"], LIMIT)


def test_the_limit_is_exact() -> None:
    assert len(body.unpack(gzip.compress(b"a" * LIMIT), ["gzip"], LIMIT)) == LIMIT
    with pytest.raises(TooLarge, match=f"more than {LIMIT} bytes"):
        body.unpack(gzip.compress(b"a" * (LIMIT + 1)), ["gzip"], LIMIT)


def test_bombs_are_stopped_at_the_limit() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge) as caught:
        body.unpack(bomb, ["gzip"], LIMIT)
    assert caught.value.http_status == 413
    with pytest.raises(TooLarge):
        body.unpack(gzip.compress(bomb), ["gzip", "gzip"], 200_000)
