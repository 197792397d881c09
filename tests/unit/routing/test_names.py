"""`*` stands for anything in a pattern, and every other character for itself."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.names import find, matches


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o", "GPT-4o", False),
        ("*", "", True),
        ("*", "any/thing:at.all", True),
        ("*", "two\nlines", True),
        ("gpt-*", "gpt-", True),
        ("gpt-*", "gpt-4o", True),
        ("gpt-*", "my-gpt-4o", False),
        ("*-mini", "gpt-4o-mini", True),
        ("*-mini", "gpt-4o-mini-x", False),
        ("a*c*e", "abcde", True),
        ("a*c*e", "ace", True),
        ("a*c*e", "aec", False),
        ("gpt-4.1", "gpt-4x1", False),
        ("gpt-4.*", "gpt-4x1", False),
        ("a[bc]*", "ab", False),
        ("a[bc]*", "a[bc]d", True),
        ("a?", "ab", False),
        ("(a|b)*", "a", False),
        ("GET /v1/*", "GET /v1/", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_names(pattern: str, name: str, meant: bool) -> None:
    assert matches(pattern, name) is meant


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_as_the_shell_has_it(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatchcase(name, pattern)


@given(st.text(max_size=8))
def test_a_name_means_itself(name: str) -> None:
    assert matches(name, name)


@dataclass(frozen=True)
class Entry:
    name: str


ENTRIES = [Entry("*-mini"), Entry("gpt-*"), Entry("gpt-4o"), Entry("*")]


@pytest.mark.parametrize(
    ("name", "found"),
    [("gpt-4o", "gpt-4o"), ("gpt-4o-mini", "*-mini"), ("gpt-5", "gpt-*"), ("o3", "*"), ("gpt-*", "gpt-*")],
)
def test_an_exact_name_comes_first_then_patterns_in_their_order(name: str, found: str) -> None:
    assert find(ENTRIES, name) == Entry(found)


def test_a_name_that_nothing_means_is_not_found() -> None:
    assert find(ENTRIES[:3], "o3") is None
