"""The command as a process of its own: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from proxy import __version__
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy_fixture import openai_config
from tests.wire.requests import chat, conversation

ROOT = Path(__file__).parents[2]
BOUND_S = 60.0
SECRET = "sk-this-is-a-secret-0123"


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.strip().splitlines()[-1]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the tester's own settings."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "CHATFUSE_"))}
    return {**own, "PYTHONPATH": str(ROOT), **(more or {})}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def run(
    folder: Path, *arguments: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments),
        cwd=folder,
        env=environment(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate(stdin)
    assert process.returncode is not None
    ended = Ended(process.returncode, out.decode(), err.decode())
    assert "\x1b" not in ended.out + ended.err
    assert "Traceback" not in ended.out + ended.err
    return ended


# --- usage ---


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], "examples:"),
        (["serve", "--help"], "--workers N"),
        (["check", "--help"], "secrets masked"),
        (["count", "--help"], "a request body or text"),
    ],
)
async def test_help(folder: Path, arguments: list[str], says: str) -> None:
    ended = await run(folder, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert says in " ".join(ended.out.split())


async def test_version(folder: Path) -> None:
    assert await run(folder, "--version") == Ended(0, f"chatfuse {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["serve", "--port"],
        ["serve", "--port", "x"],
        ["check", "extra"],
        ["count", "--nope"],
    ],
)
async def test_wrong_usage(folder: Path, arguments: list[str]) -> None:
    ended = await run(folder, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("usage: chatfuse")
    assert "error: " in ended.last


# --- check ---


async def test_check_of_a_good_config(folder: Path) -> None:
    (folder / "key").write_text(SECRET)
    (folder / "c.toml").write_text(
        openai_config("http://127.0.0.1:9/v1", backend='auth = "config"\napi_key = "file:key"')
    )
    for environ, arguments in (({}, ["--config", "c.toml"]), ({"CHATFUSE_CONFIG": "c.toml"}, [])):
        ended = await run(folder, "check", *arguments, environ=environ)
        assert ended.code == 0, ended.err
        assert ended.last == "ok: c.toml"
        resolved = json.loads(ended.out)
        assert resolved["backends"][0]["api_key"] == "**********"
        assert resolved["server"]["drain_s"] == 30.0
        assert SECRET not in ended.out + ended.err


async def test_check_of_the_defaults(folder: Path) -> None:
    ended = await run(folder, "check", environ={"OPENAI_API_KEY": SECRET})
    assert (ended.code, ended.last) == (0, "ok: the defaults")
    assert SECRET not in ended.out + ended.err


async def test_check_names_every_error(folder: Path) -> None:
    (folder / "c.toml").write_text(
        f'[server]\nport = -1\nfoo-bar = 1\n[[callers]]\nname = "c"\nkey = "{SECRET}"\n[log]\nlevel = "loud"\n'
    )
    ended = await run(folder, "check", "--config", "c.toml")
    assert (ended.code, ended.out) == (1, "")
    named = {line.split(": ")[0] for line in ended.err.splitlines()}
    assert named == {
        f"error {key}" for key in ("server.port", "server.foo-bar", "callers[0].key", "log.level")
    }
    assert SECRET not in ended.err


async def test_check_looks_at_what_the_config_needs(folder: Path) -> None:
    (folder / "c.toml").write_text(
        """
        [server]
        tls = { cert = "no.pem", key = "no.key" }
        [[backends]]
        name = "e"
        kind = "embedded"
        weights = "no.gguf"
        [[models]]
        name = "m"
        targets = [{ backend = "e" }]
        """
    )
    ended = await run(folder, "check", "--config", "c.toml")
    assert ended.code == 1
    assert "error server.tls: cannot be loaded" in ended.err
    assert "error backends[0]: " in ended.err
    assert json.loads(ended.out)["backends"][0]["weights"] == "no.gguf"


async def test_check_warns(folder: Path) -> None:
    ended = await run(folder, "check", environ={"OPENAI_API_KEY": SECRET, "CHATFUSE_HOST": "0.0.0.0"})
    assert ended.code == 0
    assert "warning backends[0].auth: anyone who reaches 0.0.0.0" in ended.err


@pytest.mark.parametrize("content", [None, b"x =", b"\xff\xfe"])
async def test_check_of_no_config(folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "c.toml").write_bytes(content)
    ended = await run(folder, "check", "--config", "c.toml")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error ")
    assert len(ended.err.splitlines()) == 1


# --- count ---


async def test_count_of_a_file_and_of_stdin(folder: Path) -> None:
    (folder / "b.json").write_bytes(chat(content="hello there"))
    by_file = await run(folder, "count", "b.json")
    by_stdin = await run(folder, "count", "-", stdin=chat(content="hello there"))
    assert by_file == by_stdin
    assert by_file.code == 0
    assert "exactly 9 tokens for gpt-4o" in by_file.out


async def test_count_of_text(folder: Path) -> None:
    ended = await run(folder, "count", "--model", "gpt-4o", stdin=b"hello there")
    assert ended.code == 0
    assert "exactly 9 tokens for gpt-4o" in ended.out
    ended = await run(folder, "count", stdin=b"hello there")
    assert (ended.code, ended.out) == (1, "")
    assert ended.last == "error no model is named: say which with --model"


async def test_count_as_json(folder: Path) -> None:
    ended = await run(folder, "count", "--json", "--model", "gpt-4", stdin=chat(content="hello there"))
    assert ended.code == 0
    found: dict[str, Any] = json.loads(ended.out)
    assert (found["model"], found["tokens"], found["exact"]) == ("gpt-4", 9, True)
    assert [message["characters"] for message in found["messages"]] == [11]


async def test_count_warns_of_text_that_has_more_tokens_than_its_length_shows(folder: Path) -> None:
    plain = await run(folder, "count", stdin=chat(content="All work and no play. " * 30))
    assert "unusual" not in plain.out
    dense = await run(folder, "count", stdin=chat(content="市议会星期二开会决定是修复还是更换" * 10))
    assert dense.code == 0
    assert "unusual: message 0: 170 characters are" in dense.out


async def test_count_of_a_plain_prompt(folder: Path) -> None:
    body = b'{"model": "gpt-3.5-turbo-instruct", "prompt": "Say this is a test"}'
    ended = await run(folder, "count", stdin=body)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("prompt     exactly 5 tokens for gpt-3.5-turbo-instruct")


async def test_count_says_what_would_be_trimmed_and_refused(folder: Path) -> None:
    (folder / "c.toml").write_text(
        openai_config(
            "http://127.0.0.1:9/v1",
            '[fuse]\nmax_context_tokens = 2000\n[context]\nstrategy = "trim"\nbudget_tokens = 400',
            "window = 4000",
        )
    )
    trimmed = await run(
        folder, "count", "--config", "c.toml", "--json", stdin=json.dumps(conversation(8)).encode()
    )
    assert trimmed.code == 0, trimmed.err
    found = json.loads(trimmed.out)
    assert found["cut"]["dropped_turns"] > 0
    assert found["cut"]["tokens_in"] <= 400 < found["tokens"]
    assert found["fuse"]["verdict"] == "ok"
    assert found["refused"] is None

    refused = await run(folder, "count", "--config", "c.toml", stdin=json.dumps(conversation(60)).encode())
    assert refused.code == 0
    assert "fuse       tripped at 2,000 tokens (enforce)" in refused.out
    assert "refused    422 This model's maximum context length is 2000 tokens" in refused.out


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["no.json"], b"", "no.json: No such file or directory"),
        (["."], b"", ".: Is a directory"),
        (["--config", "no.toml"], chat(), "no.toml cannot be read"),
        ([], chat(messages=[1]), "messages[0] must be an object"),
        ([], chat(model=""), "model must be a non-empty string"),
    ],
)
async def test_count_of_what_cannot_be_counted(
    folder: Path, arguments: list[str], stdin: bytes, says: str
) -> None:
    ended = await run(folder, "count", *arguments, stdin=stdin)
    assert (ended.code, ended.out) == (1, "")
    assert ended.last.startswith("error ")
    assert says in ended.last


async def test_count_for_a_model_that_the_config_does_not_have(folder: Path) -> None:
    (folder / "c.toml").write_text(openai_config("http://127.0.0.1:9/v1").replace('"*"', '"m"'))
    ended = await run(folder, "count", "--config", "c.toml", stdin=chat())
    assert (ended.code, ended.last) == (1, "error the model 'gpt-4o' is not in the config")


# --- serve ---


@asynccontextmanager
async def serving(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str], str]]:
    """A served proxy: its process, the lines it greeted with, and its base URL."""
    with (folder / "stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--port", "0", *arguments),
            cwd=folder,
            env=environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(BOUND_S):
            while not any("base_url" in line for line in lines):
                line = (await process.stdout.readline()).decode()
                assert line, (folder / "stderr").read_text()
                lines.append(line)
        yield process, lines, lines[-1].split('"')[1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_serve_until_a_signal(
    folder: Path, upstream: ScriptedUpstream, ending: signal.Signals, workers: str
) -> None:
    (folder / "c.toml").write_text(openai_config(upstream.base_url))
    async with serving(folder, "--config", "c.toml", "--workers", workers) as (process, lines, base_url):
        assert lines[0] == f"chatfuse {__version__} is ready\n"
        assert any(f"*  (up: {upstream.base_url}, the client's own key)" in line for line in lines)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{base_url}/chat/completions", data=chat()) as answer,
        ):
            assert answer.status == 200
        process.send_signal(ending)
        async with asyncio.timeout(BOUND_S):
            assert process.stdout is not None
            rest = (await process.stdout.read()).decode()
            assert await process.wait() == 0
    said = "".join(lines) + rest + (folder / "stderr").read_text()
    assert "\x1b" not in said
    assert "Traceback" not in said


async def test_a_port_in_use_is_one_clear_line(folder: Path) -> None:
    (folder / "c.toml").write_text(openai_config("http://127.0.0.1:9/v1"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = await run(folder, "serve", "--config", "c.toml", "--port", str(port))
        assert (ended.code, ended.out) == (1, "")
        assert len(ended.err.splitlines()) == 1
        assert f"error cannot listen: 127.0.0.1 port {port}: Address already in use" in ended.err

        # The same for the other listener, which is told by its own port.
        (folder / "c.toml").write_text(
            openai_config("http://127.0.0.1:9/v1").replace("port = 0", f"port = {port}")
        )
        ended = await run(folder, "serve", "--config", "c.toml", "--port", "0")
        assert ended.code == 1
        assert f"error cannot listen: 127.0.0.1 port {port}: Address already in use" in ended.last


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_serve_with_a_certificate_that_is_not_there(folder: Path, workers: str) -> None:
    (folder / "c.toml").write_text('[server]\ntls = { cert = "no.pem", key = "no.key" }\n[admin]\nport = 0\n')
    ended = await run(folder, "serve", "--config", "c.toml", "--port", "0", "--workers", workers)
    assert ended == Ended(1, "", "error server.tls: cannot be loaded: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--config", "bad.toml"], "error server.prot: unknown key\n"),
        (["--config", "no.toml"], "error no.toml cannot be read: No such file or directory\n"),
        (
            ["--port", "70000"],
            "error server.port: Input should be less than or equal to 65535 "
            "(from CHATFUSE_PORT, or the command line)\n",
        ),
        (
            ["--workers", "0"],
            "error server.workers: Input should be greater than or equal to 1 "
            "(from CHATFUSE_WORKERS, or the command line)\n",
        ),
    ],
)
async def test_serve_with_a_bad_config(folder: Path, arguments: list[str], error: str) -> None:
    (folder / "bad.toml").write_text("[server]\nprot = 1\n")
    assert await run(folder, "serve", *arguments) == Ended(1, "", error)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_signal_while_it_starts_ends_it_cleanly(folder: Path, workers: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "serve", "--port", "0", "--workers", str(workers),
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CHATFUSE_ADMIN_PORT": "0"},
    )  # fmt: skip
    async with asyncio.timeout(60):
        while not psutil.Process(process.pid).children():
            await asyncio.sleep(0.01)  # its first child: the engine
        process.terminate()
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    assert b"ready" not in out
