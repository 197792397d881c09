"""The verdict on a count: over the threshold means over it, whoever may be over."""

from __future__ import annotations

import pytest

from proxy.exchange import FuseStatus, Limit
from proxy.stages.fuse import verdict
from proxy.tokens.counts import Counts


@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        (10**9, Limit(), "ok"),
        (99, Limit(100), "ok"),
        (100, Limit(100), "ok"),
        (101, Limit(100), "tripped"),
        (101, Limit(100, enforced=False), "tripped"),
        (101, Limit(100, allowed=True), "allowed"),
        (101, Limit(100, enforced=False, allowed=True), "allowed"),
        (100, Limit(100, allowed=True), "ok"),
        (0, Limit(1), "ok"),
    ],
)
def test_verdict(tokens: int, limit: Limit, expected: FuseStatus) -> None:
    assert verdict(Counts(tokens), limit) == expected
    assert verdict(Counts(tokens, complete=False), limit) == expected


@pytest.mark.parametrize(
    ("limit", "stop"),
    [
        (Limit(), None),
        (Limit(100), 100),
        (Limit(100, enforced=False), None),
        (Limit(100, allowed=True), None),
    ],
)
def test_counting_stops_only_where_nothing_but_the_refusal_needs_the_number(
    limit: Limit, stop: int | None
) -> None:
    assert limit.stops_counting == stop
