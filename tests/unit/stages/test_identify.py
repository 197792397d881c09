"""Who asks and what holds for them: keys, the strategy of their choice, the threshold in force."""

from __future__ import annotations

import pytest

from proxy import config
from proxy.config import Fuse, FuseOverride
from proxy.config_load import load
from proxy.errors import InvalidApiKey, InvalidRequest, NotAllowed
from proxy.exchange import ANONYMOUS, Caller, Limit
from proxy.stages.identify import Keys, check_model, chosen_strategy, limit, may_use, shown

FREE = Caller("free", ("*",), may_choose_context=True)
BOUND = Caller("bound", ("gpt-4o*", "o3"), may_choose_context=False)


# --- keys ---


def callers(**keys: str) -> tuple[config.Caller, ...]:
    """Callers by name and key, as a config file has them."""
    text = "".join(
        f'[[callers]]\nname = "{name}"\nkey = "env:{name}"\nfuse = {{ max_context_tokens = {len(name)} }}\n'
        for name in keys
    )
    text += '[[backends]]\nname = "up"\nkind = "openai"\nauth = "none"\n'
    return load(
        text + '[[models]]\nname = "*"\ntargets = [{ backend = "up" }]\n', keys, embedded=False
    ).callers


def test_a_caller_is_known_by_its_key() -> None:
    keys = Keys(callers(alice="key-a", bo="key-b"))
    caller, fuse = keys.identify([("Authorization", "Bearer key-b")])
    assert caller == Caller("bo", ("*",), may_choose_context=False)
    assert fuse == FuseOverride(max_context_tokens=2)
    assert keys.identify([("x-api-key", "key-a")])[0].name == "alice"


def test_without_callers_everyone_is_anonymous() -> None:
    for headers in ([], [("Authorization", "Bearer anything")]):
        assert Keys(()).identify(headers) == (ANONYMOUS, None)


@pytest.mark.parametrize(
    "value",
    ["Bearer key-c", "Bearer key-", "Bearer key-aa", "Bearer KEY-A", "Bearer k\udcff", "Basic key-a", ""],
)
def test_any_other_key_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(InvalidApiKey) as caught:
        Keys(callers(alice="key-a")).identify([("Authorization", value)])
    assert caught.value.http_status == 401
    assert "key-" not in caught.value.message


def test_no_key_is_told_apart_from_a_wrong_one() -> None:
    keys = Keys(callers(alice="key-a"))
    with pytest.raises(InvalidApiKey, match="no API key was given"):
        keys.identify([])
    with pytest.raises(InvalidApiKey, match="is not known here"):
        keys.identify([("Authorization", "Bearer x")])


def test_keys_are_held_as_digests_only() -> None:
    keys = Keys(callers(alice="key-a"))
    assert b"key-a" not in b"".join(keys._callers)
    assert "key-a" not in repr(vars(keys))


# --- models ---


@pytest.mark.parametrize(
    ("model", "may"), [("gpt-4o", True), ("gpt-4o-mini", True), ("o3", True), ("o3-mini", False), ("", False)]
)
def test_the_allow_list(model: str, may: bool) -> None:
    assert may_use(BOUND, model) is may
    assert may_use(FREE, model)
    if not may:
        with pytest.raises(NotAllowed) as caught:
            check_model(BOUND, model)
        assert (caught.value.http_status, caught.value.error_code) == (403, "model_not_allowed")


def test_a_name_is_shown_quoted_and_short() -> None:
    assert shown("a\r\nb\ud800") == "'a\\r\\nb\\ud800'"
    assert len(shown("x" * 10_000)) < 110


# --- strategy ---


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        ([], None),
        ([("x-chatfuse-context", "trim")], "trim"),
        ([("X-Chatfuse-Context", "keep")], "keep"),
    ],
)
def test_who_may_chooses_the_strategy(headers: list[tuple[str, str]], chosen: str | None) -> None:
    assert chosen_strategy(headers, FREE) == chosen


def test_who_may_not_is_told() -> None:
    assert chosen_strategy([], BOUND) is None
    with pytest.raises(NotAllowed) as caught:
        chosen_strategy([("x-chatfuse-context", "trim")], BOUND)
    assert caught.value.error_code == "context_not_allowed"


@pytest.mark.parametrize("value", ["", "TRIM", "trim, keep", "summarise", "x" * 1000])
def test_an_unknown_strategy_is_told(value: str) -> None:
    with pytest.raises(InvalidRequest, match="must be keep, trim or summarize") as caught:
        chosen_strategy([("x-chatfuse-context", value)], FREE)
    assert caught.value.param == "x-chatfuse-context"


# --- limit ---


@pytest.mark.parametrize(
    ("general", "model", "route", "caller", "expected"),
    [
        (Fuse(), None, None, None, Limit()),
        (Fuse(max_context_tokens=9), None, None, None, Limit(9)),
        (Fuse(max_context_tokens=9, mode="observe"), None, None, None, Limit(9, enforced=False)),
        (Fuse(max_context_tokens=9), FuseOverride(max_context_tokens=8), None, None, Limit(8)),
        (Fuse(), None, FuseOverride(max_context_tokens=7), None, Limit(7)),
        (
            Fuse(max_context_tokens=9),
            FuseOverride(max_context_tokens=8),
            FuseOverride(max_context_tokens=7),
            FuseOverride(max_context_tokens=60),
            Limit(60),
        ),
        # What one leaves out comes from the next.
        (
            Fuse(max_context_tokens=9),
            FuseOverride(max_context_tokens=8),
            FuseOverride(mode="observe"),
            FuseOverride(),
            Limit(8, enforced=False),
        ),
        (
            Fuse(max_context_tokens=9, mode="observe"),
            None,
            None,
            FuseOverride(mode="enforce"),
            Limit(9, enforced=True),
        ),
    ],
)
def test_the_nearest_setting_holds(
    general: Fuse,
    model: FuseOverride | None,
    route: FuseOverride | None,
    caller: FuseOverride | None,
    expected: Limit,
) -> None:
    assert limit(general, route=route, model=model, caller=caller, allowed=False) == expected
    found = limit(general, route=route, model=model, caller=caller, allowed=True)
    assert found == Limit(expected.max_context_tokens, enforced=expected.enforced, allowed=True)
