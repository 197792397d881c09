from __future__ import annotations

import json

import pytest

from backends.json_bytes import digestible, json_bytes


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    assert json_bytes({"a": "\ud800"}) == b'{"a": "\\ud800"}'
    assert json.loads(json_bytes(["\udfff", "ü"])) == ["\udfff", "ü"]


def test_keys_can_be_sorted_either_way() -> None:
    assert json_bytes({"b": 1, "a": 2}, sort_keys=True) == b'{"a":2,"b":1}'
    assert json_bytes({"b": "\ud800", "a": 2}, sort_keys=True) == b'{"a": 2, "b": "\\ud800"}'


def test_what_is_too_deep_to_be_written_can_be_digested() -> None:
    deep: object = "x"
    for _ in range(1000):
        deep = {"a": [deep]} if isinstance(deep, str) else [deep]
    with pytest.raises(RecursionError):
        json_bytes(deep)
    assert digestible(deep) == digestible(deep)
    assert digestible([deep]) != digestible(deep)
