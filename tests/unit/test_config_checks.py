"""What sections say of each other, what a change needs, and whatever else a file may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Cap, Config, ConfigError, Context, ContextOverride
from proxy.config_checks import ENCODINGS, is_loopback, needs_restart, warnings
from tests.unit.test_config import BACKEND, KEY, MODEL, keys, problems, read

# --- what one section says of another ---

TWO_EMBEDDED = '[[backends]]\nname = "e"\nkind = "embedded"\n[[backends]]\nname = "f"\nkind = "embedded"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (BACKEND + BACKEND + MODEL, "backends"),
        (TWO_EMBEDDED + '[[models]]\nname = "m"\ntargets = [{ backend = "e" }]', "backends"),
        (BACKEND, "models"),
        (MODEL, "backends"),
        (BACKEND + MODEL + MODEL, "models"),
        ('[server]\npassthrough_backend = "x"' + BACKEND + MODEL, "server.passthrough_backend"),
        ('[server]\npassthrough_paths = ["GET /v1/*", "/v1/*"]', "server.passthrough_paths[1]"),
        ('[server]\npassthrough_paths = ["get /v1/*"]', "server.passthrough_paths[0]"),
        ('[server]\npassthrough_paths = ["GET /etc"]', "server.passthrough_paths[0]"),
        (BACKEND + '[[models]]\nname = "m"\ntargets = [{ backend = "x" }]', "models[0].targets[0].backend"),
        (BACKEND + MODEL + 'fallbacks = ["x"]', "models[0].fallbacks"),
        (BACKEND + MODEL.replace('"m"', '"*"') + 'fallbacks = ["*"]', "models[0].fallbacks"),
        (BACKEND + MODEL + 'tokenizer = "gpt-4o"', "models[0].tokenizer"),
        ('[context]\nstrategy = "trim"' + BACKEND + MODEL, "models[0].window"),
        (BACKEND + MODEL + 'context = { strategy = "trim" }', "models[0].window"),
        ('[[callers]]\nname = "c"\nkey = "env:K"' + BACKEND + MODEL, "backends[0].auth"),
        ('[[callers]]\nname = "c"\nkey = "env:K"\n[[callers]]\nname = "c"\nkey = "env:L"', "callers"),
        ('[[callers]]\nname = "c"\nkey = "env:K"\n[[callers]]\nname = "d"\nkey = "env:K"', "callers[1].key"),
        ('[fuse.allow]\ncallers = ["nobody"]', "fuse.allow.callers"),
        ('[admin]\nhost = "0.0.0.0"', "admin.token"),
    ],
)
def test_sections_that_do_not_fit_each_other_are_refused(text: str, key: str) -> None:
    assert key in keys(text, {"K": KEY, "L": KEY + "2"})


@pytest.mark.parametrize(
    "text",
    [
        '[admin]\nhost = "0.0.0.0"\ntoken = "env:K"',
        '[admin]\nhost = "0.0.0.0"\nenabled = false',
        '[server]\npassthrough_backend = "none"',
        '[context]\nstrategy = "trim"\nbudget_tokens = 100',
        '[context]\nstrategy = "trim"' + BACKEND + MODEL + "window = 100",
        '[[callers]]\nname = "c"\nkey = "env:K"\n[fuse.allow]\ncallers = ["c"]'
        + BACKEND
        + 'auth = "none"'
        + MODEL,
        *(BACKEND + MODEL + f'tokenizer = "{name}"' for name in ENCODINGS),
    ],
)
def test_sections_that_fit_each_other_are_taken(text: str) -> None:
    read(text, {"K": KEY})


def test_a_key_that_nothing_would_use_is_refused() -> None:
    ((key, problem),) = problems(BACKEND + 'api_key = "env:K"' + MODEL, {"K": KEY})
    assert key == "backends[0]"
    assert "api_key is set" in problem


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


def test_serving_everyone_on_our_key_is_warned_of() -> None:
    assert warnings(read("", {"OPENAI_API_KEY": KEY})) == []
    ((key, _),) = warnings(read("", {"OPENAI_API_KEY": KEY, "CHATFUSE_HOST": "0.0.0.0"}))
    assert key == "backends[0].auth"
    assert warnings(read("", {"CHATFUSE_HOST": "0.0.0.0"})) == []


@pytest.mark.parametrize(
    ("fuse", "own", "key"),
    [
        (100, "", "fuse.max_context_tokens"),
        (101, "", None),
        (5000, "fuse = { max_context_tokens = 50 }", "models[0].fuse"),
        (50, "fuse = { max_context_tokens = 5000 }", None),
        (50, 'context = { strategy = "keep" }', None),
    ],
)
def test_a_fuse_within_the_budget_is_warned_of(fuse: int, own: str, key: str | None) -> None:
    text = f'[fuse]\nmax_context_tokens = {fuse}\n[context]\nstrategy = "trim"\nbudget_tokens = 100'
    found = warnings(read(text + BACKEND + MODEL + own))
    assert [where for where, _ in found] == ([key] if key else [])


@pytest.mark.parametrize(
    ("text", "own", "key"),
    [
        ("[context]\nsqueeze = { base64 = true }", "", "context.squeeze"),
        ("", "context = { squeeze = { tool_output_tokens = 100 } }", "models[0].context.squeeze"),
        (
            "[context]\nbudget_tokens = 9000\nsqueeze = { base64 = true }",
            'context = { strategy = "trim" }',
            None,
        ),
        (
            "[context]\nsqueeze = { base64 = true }",
            "context = { squeeze = { base64 = false } }",
            None,
        ),
    ],
)
def test_a_squeeze_that_nothing_applies_is_warned_of(text: str, own: str, key: str | None) -> None:
    found = warnings(read(text + BACKEND + MODEL + own))
    assert [where for where, _ in found] == ([key] if key else [])


# --- arithmetic ---


@pytest.mark.parametrize(
    ("context", "window", "budget"),
    [
        ({}, None, None),
        ({}, 128_000, 128_000 - 4096),
        ({}, 16_384, 16_384 - 4096),
        ({}, 8192, 6144),
        ({}, 1, 1),
        ({"reserve_tokens": 0}, 1000, 1000),
        ({"reserve_tokens": 100}, 1000, 900),
        ({"reserve_tokens": 5000}, 1000, 1),
        ({"reserve_tokens": 100}, None, None),
        ({"budget_tokens": 500}, None, 500),
        ({"budget_tokens": 500}, 1000, 500),
        ({"budget_tokens": 5000}, 1000, 1000),
        ({"budget_tokens": 500, "reserve_tokens": 900}, 1000, 500),
    ],
)
def test_the_budget(context: dict[str, Any], window: int | None, budget: int | None) -> None:
    assert Context(**context).budget(window) == budget


def test_overrides_leave_what_they_do_not_name() -> None:
    base = Context(strategy="trim", budget_tokens=100, low_water=0.3)
    assert base.overridden(None) is base
    assert base.overridden(ContextOverride()) == base
    own = base.overridden(ContextOverride(strategy="keep", low_water=0.7))
    assert (own.strategy, own.budget_tokens, own.low_water) == ("keep", 100, 0.7)
    cap = Cap(max_tokens=5).over(Cap(max_tokens=9, default_tokens=3))
    assert (cap.max_tokens, cap.default_tokens, cap.min_tokens) == (5, 3, None)


# --- reload ---


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ('[server]\nhost = "127.0.0.2"', "server.host"),
        ("[server]\nport = 1", "server.port"),
        ("[server]\nworkers = 2", "server.workers"),
        ('[server]\ntls = { cert = "c", key = "k" }', "server.tls"),
        ("[admin]\nenabled = false", "admin.enabled"),
        ('[admin]\nhost = "127.0.0.2"', "admin.host"),
        ("[admin]\nport = 1", "admin.port"),
        ('[admin]\ntoken = "env:K"', "admin.token"),
        ('[log]\nlevel = "debug"', "log.level"),
        ('[log]\nformat = "json"', "log.format"),
        ('[telemetry]\nclient_ip = "full"', "telemetry.client_ip"),
        ("[telemetry]\nmax_models = 1", "telemetry.max_models"),
        (BACKEND + '[[backends]]\nname = "e"\nkind = "embedded"' + MODEL, 'backends (kind = "embedded")'),
    ],
)
def test_what_needs_a_restart_is_named(changed: str, key: str) -> None:
    assert needs_restart(read(), read(changed, {"K": KEY})) == [key]


def test_everything_else_changes_while_running() -> None:
    changed = """
        [server]
        max_body_bytes = 2048
        body_idle_s = 1
        drain_s = 1
        passthrough_backend = "none"
        keepalive_comment_s = 5
        [context]
        strategy = "trim"
        budget_tokens = 9
        [cap]
        max_tokens = 9
        [fuse]
        max_context_tokens = 9
    """
    assert needs_restart(read(), read(changed + BACKEND + MODEL)) == []


# --- whatever is written ---

_names = st.sampled_from(
    [
        *Config.model_fields,
        "name",
        "kind",
        "key",
        "port",
        "targets",
        "backend",
        "window",
        "tls",
        "routes",
        "x-y",
    ]
)
_texts = st.one_of(
    st.sampled_from(["openai", "embedded", "auto", "*", "env:K", "file:x", "trim", "::1/128", "GET /v1/*"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8),
)
_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 3), st.integers(10**30, 10**400), st.floats(), _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(_names, _texts), inner, max_size=5)
    ),
    max_leaves=25,
)


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {as_toml(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def refusal(text: str) -> list[tuple[str, str]] | None:
    try:
        read(text, {"K": KEY})
    except ConfigError as error:
        return error.problems
    return None


@given(st.dictionaries(_names, _values, max_size=6))
def test_whatever_a_file_holds_it_is_read_or_refused_with_keys(content: dict[str, Any]) -> None:
    found = refusal("\n".join(f"{json.dumps(name)} = {as_toml(value)}" for name, value in content.items()))
    assert found is None or (found and all(key and KEY not in problem for key, problem in found))


@given(st.text(max_size=40))
def test_whatever_the_text_is_it_is_read_or_refused(text: str) -> None:
    assert refusal(text) != []
