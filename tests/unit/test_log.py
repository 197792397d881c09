"""No key leaves by the log, whatever shape it comes in; every JSON line is one; text is for people."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import log
from proxy.log import REDACTED, JsonFormatter, TextFormatter, redact

SECRET = "s3cr3t-value/+=="
KEY = "sk-proj-Abc_123-456def"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization:bearer {SECRET}",
        f"AUTHORIZATION = Bearer\t{SECRET}",
        f"Authorization: Basic {SECRET}",
        f"Proxy-Authorization: Basic {SECRET}",
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f'{{"authorization":"Basic {SECRET}"}}',
        f"[('Authorization', 'Token {SECRET}')]",
        f"(b'x-api-key', b'{SECRET}')",
        f"('api-key', '{SECRET}')",
        f"x-api-key: {SECRET}",
        f"API-Key:{SECRET}",
        f"api_key={SECRET}&model=m",
        f"apikey = '{SECRET}'",
        f'"api_key": "{SECRET}"',
        f"api key: {SECRET}",
        f"https://host/v1?token={SECRET}&x=1",
        f"client_secret={SECRET}",
        f"password: {SECRET}",
        f"redis://:{SECRET.replace('/', '')}@host:6379/0",
        f"https://user:{SECRET.replace('/', '')}@host/path",
        "redis://user:p@s3cr3t-value@host",
        f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{SECRET}, beta",
        f"the bearer {SECRET}, it said",
    ],
)
def test_what_stands_where_secrets_stand_is_taken_out(text: str) -> None:
    out = redact(text)
    assert REDACTED in out
    assert "s3cr3t" not in out


@pytest.mark.parametrize(
    "key",
    [KEY, "sk-ant-api03-abcdefgh", "rk-abcdefgh1", "hf_abcdefGHIJ12", "gsk_abcdefGHIJ12", "xai-abcdefgh12"],
)
def test_what_looks_like_a_key_is_taken_out_anywhere(key: str) -> None:
    for text in (
        key,
        f"refused {key}.",
        f"[{key!r}]",
        f'{{"message":"key {key} is wrong"}}',
        f"é{'='}{key}\n",
    ):
        assert key not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "the model 'gpt-4o' is not served here",
        "prompt_tokens: 9, completion_tokens=2, max_tokens: 5",
        "backend 'up' cannot be reached: Connection refused",
        "http://127.0.0.1:8787/v1/chat/completions",
        "a risk-assessment of the task-force at 10:20:30",
        "config 2 is in force",
        "",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


def test_what_surrounds_a_secret_stays() -> None:
    assert (
        redact(f"GET /v1?api_key={SECRET}&b=2 from 10.0.0.1")
        == f"GET /v1?api_key={REDACTED}&b=2 from 10.0.0.1"
    )
    assert redact("redis://user:pw@host:1/0") == f"redis://user:{REDACTED}@host:1/0"
    assert redact(f"a {KEY} b") == f"a {REDACTED} b"


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "a:" * 100_000, "token " * 50_000, "://" * 100_000, "sk-" * 99_999]
)
def test_long_text_costs_no_more_than_its_length(text: str) -> None:
    started = time.perf_counter()
    redact(text)
    assert time.perf_counter() - started < 5.0


# --- formats ---


def record(message: str, *args: object, exc: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    info = (type(exc), exc, exc.__traceback__) if exc is not None else None
    made = logging.LogRecord("proxy.x", logging.WARNING, __file__, 1, message, args, info)
    vars(made).update(extra)
    return made


def line(*args: Any, **extra: Any) -> dict[str, Any]:
    text = JsonFormatter().format(record(*args, **extra))
    assert "\n" not in text
    value: dict[str, Any] = json.loads(text)
    return value


def failure(message: str) -> Exception:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_json_line_has_its_fields() -> None:
    made = record("backend %r answered %d", "up", 500, request_id="r1", tokens=7)
    made.created, made.msecs = 1700000000.25, 250.0
    assert json.loads(JsonFormatter().format(made)) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "proxy.x",
        "message": "backend 'up' answered 500",
        "request_id": "r1",
        "tokens": 7,
    }


def test_no_secret_in_any_field_of_a_json_line() -> None:
    found = line(
        "sent %s",
        f"Authorization: Bearer {SECRET}",
        exc=failure(f"x-api-key: {SECRET}"),
        api_key=SECRET,
        note=f"token={SECRET}",
        headers=[("Authorization", f"Basic {SECRET}"), ("x-api-key", SECRET), ("accept", "*/*")],
        nested={"deep": {"x-api-key": SECRET, "list": [KEY, {"password": SECRET}]}},
        thing=failure(KEY),
    )
    text = json.dumps(found)
    assert SECRET not in text
    assert KEY not in text
    assert found["headers"][2] == ["accept", "*/*"]
    assert found["nested"]["deep"]["list"][1] == {"password": REDACTED}
    assert "ValueError" in found["trace"]


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        "\x00\x1b[31m\r\n",
        2**80,
        float("nan"),
        {1: {2: 3}},
        {"a"},
        b"\xff",
        object(),
        None,
        True,
        [()],
    ],
    ids=repr,
)
def test_nothing_loses_a_line(value: object) -> None:
    found = line("value %s", value, field=value)
    assert found["message"].startswith("value ")
    assert "field" in found


@given(st.text(st.characters(categories=None)), st.text(st.characters(categories=None)))
def test_any_text_makes_a_line(message: str, field: str) -> None:
    found = line("%s", message, field=field)
    assert set(found) == {"time", "level", "logger", "message", "field"}


def test_text_is_for_people() -> None:
    text = TextFormatter().format(record("backend %r answered %d", "up", 500, request_id="r1"))
    assert text.endswith(" WARNING backend 'up' answered 500  request_id=r1")


def test_no_secret_in_text() -> None:
    text = TextFormatter().format(
        record(
            f"Bearer {SECRET}",
            exc=failure(f"api_key={SECRET}"),
            token=SECRET,
            headers=[("x-api-key", SECRET)],
        )
    )
    assert SECRET not in text
    assert "ValueError" in text


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("style", "formatter"), [("auto", JsonFormatter), ("json", JsonFormatter), ("text", TextFormatter)]
)
def test_configure(
    root: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    style: log.Format,
    formatter: type[logging.Formatter],
) -> None:
    assert not sys.stderr.isatty()
    log.configure("error", style)
    (handler,) = root.handlers
    assert isinstance(handler.formatter, formatter)
    assert root.level == logging.ERROR
