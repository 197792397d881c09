"""What commands make of their input and how they show it, without a process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from proxy import config, server
from proxy.cli import build_parser, main
from proxy.cli.count import as_prompt, report
from proxy.cli.serve import banner, environment, model_lines
from proxy.cli.terminal import ProgressLine, Style, problem_lines, table
from proxy.config_load import load
from proxy.errors import InvalidRequest
from proxy.telemetry.snapshot import Snapshot


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PLAIN = Style(io.StringIO())


# --- looks ---


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style(Terminal()).bad("x") == "\033[31mx\033[0m"
    assert PLAIN.bad("x") + PLAIN.bold("y") + PLAIN.dim("z") + PLAIN.good("g") + PLAIN.warn("w") == "xyzgw"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style(Terminal()).bad("x") == "x"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert Style(Terminal()).bad("x") == "x"


def test_a_table_is_aligned() -> None:
    rows = [["name", "n"], ["a", "5"], ["longer", "1,234"], ["%", "12.5%"]]
    assert table(rows, PLAIN).split("\n") == ["name    n", "a           5", "longer  1,234", "%       12.5%"]


def test_problems_are_told_one_a_line() -> None:
    lines = problem_lines([("server.port", "is odd"), ("", "not TOML")], PLAIN)
    assert lines == ["error server.port: is odd", "error not TOML"]


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere() -> None:
    terminal, elsewhere = Terminal(), io.StringIO()
    for stream in (terminal, elsewhere):
        progress = ProgressLine(stream)
        progress.show("one")
        progress.show("two")
        progress.clear()
    assert elsewhere.getvalue() == ""
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")


# --- count ---

BODY = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}'


def test_a_body_is_taken_as_it_is() -> None:
    assert as_prompt(BODY, None).raw == BODY
    assert as_prompt(BODY, "o3").model == "o3"


@pytest.mark.parametrize(
    "raw", [b"hello", b"[1, 2]", b'"quoted"', "Grüße 🌍".encode(), b"  indented { text }"]
)
def test_plain_text_is_one_message(raw: bytes) -> None:
    assert as_prompt(raw, "gpt-4o").messages == [{"role": "user", "content": raw.decode()}]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "nothing to count"),
        (b" \n", "nothing to count"),
        (b'{"messages": [', "not JSON"),
        (b'{"model": "m", "text": "hi"}', "no messages, no prompt and no input"),
        (b"\xff\xfe", "neither a request nor UTF-8"),
    ],
)
def test_what_is_neither_a_request_nor_text_is_not_counted_as_something_else(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        as_prompt(raw, "gpt-4o")


@pytest.mark.parametrize(
    ("body", "asked", "path"),
    [
        (b'{"model": "m", "prompt": "hi"}', None, "/v1/completions"),
        (b'{"model": "m", "input": "hi"}', None, "/v1/responses"),
        (BODY, None, "/v1/chat/completions"),
        (BODY, "messages", "/v1/messages"),
    ],
)
def test_the_dialect_is_told_by_the_body_or_named(body: bytes, asked: str | None, path: str) -> None:
    assert as_prompt(body, None, asked).dialect.path == path


@pytest.mark.parametrize("model", [None, "o3"])
def test_half_a_character_does_not_make_a_body_a_text(model: str | None) -> None:
    prompt = as_prompt(BODY.replace(b"hi", b"\\ud83d"), model)
    assert list(prompt.messages) == [{"role": "user", "content": "\ud83d"}]
    assert prompt.model == (model or "gpt-4o")


def test_a_model_must_come_from_somewhere() -> None:
    with pytest.raises(InvalidRequest, match="--model"):
        as_prompt(b"hello", None)
    with pytest.raises(InvalidRequest, match="--model"):
        as_prompt(b'{"messages": []}', None)


def test_the_report_has_every_part() -> None:
    text = report(
        {
            "model": "m",
            "window": 1000,
            "strategy": "trim",
            "tokens": 900,
            "complete": False,
            "exact": False,
            "unsure": ["a refusal"],
            "messages": [
                {"index": 0, "role": "user", "tokens": 890, "characters": 2000},
                {"index": 1, "role": "user", "tokens": 4, "characters": 0, "remark": "as long as it is wide"},
            ],
            "cut": {
                "dropped_messages": 2,
                "dropped_turns": 1,
                "trimmed_tokens": 1234,
                "first_kept": 2,
                "tokens_in": 66,
            },
            "fuse": {"max_context_tokens": 800, "mode": "enforce", "verdict": "tripped"},
            "refused": {"status": 422, "message": "too long"},
        },
        PLAIN,
    )
    for part in (
        "      0  user     890       2,000         0.45      89.0%",
        "prompt     at least 900 tokens for m",
        "not sure: a refusal",
        "unusual: message 1: as long as it is wide",
        "window     1,000 tokens, 90.0% used",
        "trim       1 turns (2 messages, 1,234 tokens) go; message 2 is the first kept; 66 tokens are sent",
        "fuse       tripped at 800 tokens (enforce)",
        "refused    422 too long",
    ):
        assert part in text


# --- serve ---


def test_the_command_line_stands_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATFUSE_PORT", "1")
    monkeypatch.setenv("CHATFUSE_HOST", "a")
    options = build_parser().parse_args(["serve", "--port", "0", "--workers", "2"])
    environ = environment(options)
    assert (environ["CHATFUSE_PORT"], environ["CHATFUSE_HOST"], environ["CHATFUSE_WORKERS"]) == (
        "0",
        "a",
        "2",
    )


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:5/v1"),
        ("0.0.0.0", "http://127.0.0.1:5/v1"),
        ("::1", "http://[::1]:5/v1"),
        ("::", "http://[::1]:5/v1"),
        ("example.org", "http://example.org:5/v1"),
    ],
)
def test_the_banner_names_an_address_that_a_client_can_use(host: str, shown: str) -> None:
    settings = load("", {"CHATFUSE_HOST": host}, embedded=False)

    async def reload() -> None:
        return None

    running = server.Running(settings, 5, 6, NoCrew(), reload)
    text = banner(running, PLAIN, embedded=False)
    assert f'base_url = "{shown}"' in text
    assert "http://127.0.0.1:6/metrics" in text
    assert "*  (openai: https://api.openai.com/v1, the client's own key)" in text
    assert "pip install" in text
    assert "pip install" not in banner(running, PLAIN, embedded=True)


class NoCrew:
    """Nobody works; what is shown does not depend on it."""

    async def start(self) -> None: ...
    async def apply(self, settings: config.Config, text: str) -> None: ...
    async def snapshot(self) -> Snapshot:
        return Snapshot()

    async def stop(self, drain_s: float) -> bool:
        return True


def test_models_are_listed_with_their_places_and_no_key() -> None:
    text = """
        [[backends]]
        name = "a"
        kind = "openai"
        auth = "config"
        api_key = "env:K"
        [[backends]]
        name = "e"
        kind = "embedded"
        [[models]]
        name = "m"
        targets = [{ backend = "a" }, { backend = "e" }]
    """
    (line,) = model_lines(load(text, {"K": "sk-secret"}, embedded=True))
    assert line.startswith("m  (a: https://api.openai.com/v1, our key; e: ")
    assert "sk-secret" not in line


# --- the whole command ---


def test_a_config_error_is_one_line_each_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[server]\nport = -1\n[log]\nlevel = "loud"\n')
    for command in ("check", "serve", "count"):
        arguments = [command, "--config", str(file)]
        if command == "count":
            body = tmp_path / "body.json"
            body.write_bytes(BODY)
            arguments.append(str(body))
        assert main(arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert [line.split(":")[0] for line in captured.err.splitlines()] == [
            "error server.port",
            "error log.level",
        ]


def test_check_says_what_a_low_water_mark_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[[backends]]\nname = "up"\nkind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'
        '[[models]]\nname = "a"\ntargets = [{ backend = "up" }]\n'
        'context = { strategy = "trim", budget_tokens = 4000, low_water = 0.5 }\n'
        '[[models]]\nname = "b"\ntargets = [{ backend = "up" }]\ncontext = { strategy = "trim" }\n'
        '[[models]]\nname = "c"\ntargets = [{ backend = "up" }]\n'
    )
    assert main(["check", "--config", str(file)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(
        "a: of 4,000 tokens about 2,925 (73%) are sent on average, 2,000 right after a cut"
    )
    assert told[1].startswith("b: on average about 75% of the budget")
    assert not any(line.startswith("c:") for line in told)


def test_count_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(BODY)
    assert main(["count", str(body), "--json", "--model", "gpt-4o"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 8
