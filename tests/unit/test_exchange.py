"""The rules that an exchange keeps by itself."""

from __future__ import annotations

from typing import Any, cast

from proxy.exchange import ANONYMOUS, Exchange, Limit, Model, network_holds


def exchange() -> Exchange:
    made = Exchange("r", "/v1/chat/completions", (), "", 0.0)
    made.prompt = cast(Any, None)
    made.caller = ANONYMOUS
    made.limit = Limit(5)
    return made


def test_the_fuse_judges_the_first_attempt_that_can_be_counted_and_no_other() -> None:
    one = exchange()
    model = cast(Model, None)
    assert one.attempt(model).limit == Limit(5), "its counter may be down, and nothing is judged"
    second = one.attempt(model)
    assert second.limit == Limit(5)
    second.fuse_status = "ok"
    assert one.attempt(model).limit == Limit()


def test_the_first_outcome_stands() -> None:
    one = exchange()
    one.finish("interrupted")
    one.finish("client_gone")
    assert one.outcome == "interrupted"


def test_an_address_that_cannot_be_read_is_in_no_network() -> None:
    assert not network_holds((), "127.0.0.1")
    assert not network_holds((), "nonsense")
