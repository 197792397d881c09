"""A config is read whole or refused whole, every error under its key, and no secret is ever shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.config import Cap, Config, ConfigError, OpenAIBackend
from proxy.config_load import load

BACKEND = """
[[backends]]
name = "up"
kind = "openai"
"""
MODEL = """
[[models]]
name = "m"
targets = [{ backend = "up" }]
"""
KEY = "sk-verysecretvalue"


def read(
    text: str = "",
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    embedded: bool = False,
) -> Config:
    return load(text, environ or {}, folder, embedded=embedded)


def problems(
    text: str = "", environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        read(text, environ, folder)
    return caught.value.problems


def keys(text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    return [key for key, _ in problems(text, environ)]


# --- errors and their keys ---


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[server]\nport = 70000", "server.port"),
        ("[cap]\nmax_tokens = true", "cap.max_tokens"),
        ('[fuse.routes."/v1/chat/completion"]\nmax_context_tokens = 5', 'fuse.routes."/v1/chat/completion"'),
        ("[server]\nport = -1", "server.port"),
        ('[server]\nport = "x"', "server.port"),
        ("[server]\nport = 1979-05-27T07:32:00Z", "server.port"),
        ("[server]\nworkers = 0", "server.workers"),
        ("[server]\nmax_body_bytes = 10", "server.max_body_bytes"),
        ("[server]\nbody_idle_s = 0", "server.body_idle_s"),
        ("[server]\nbody_idle_s = nan", "server.body_idle_s"),
        ("[server]\ndrain_s = -1", "server.drain_s"),
        ('[server]\ntls = { cert = "c.pem" }', "server.tls.key"),
        ('[server]\ntrusted_proxies = ["10.0.0.0/8", "10.0.0.1/8"]', "server.trusted_proxies[1]"),
        ('[server]\npassthrough_paths = "GET /v1/files"', "server.passthrough_paths"),
        ("server = 1", "server"),
        ("server = []", "server"),
        ("callers = 1", "callers"),
        ("callers = [1]", "callers[0]"),
        ("backends = [1]", "backends[0]"),
        ('[[backends]]\nname = "a"', "backends[0]"),
        ('[[backends]]\nname = "a"\nkind = "grpc"', "backends[0]"),
        ('[[backends]]\nkind = "openai"', "backends[0].name"),
        ('[[backends]]\nkind = "openai"\nname = "a b"', "backends[0].name"),
        (BACKEND + 'base_url = "ftp://x"', "backends[0].base_url"),
        (BACKEND + 'base_url = "http://user:pw@x/v1"', "backends[0].base_url"),
        (BACKEND + 'base_url = "http://x/v1?a=b"', "backends[0].base_url"),
        (BACKEND + 'auth = "config"', "backends[0]"),
        (BACKEND + "ttft_s = 0", "backends[0].ttft_s"),
        ('[[backends]]\nname = "e"\nkind = "embedded"\nslots = 0', "backends[0].slots"),
        (BACKEND + '[[models]]\nname = "m"', "models[0].targets"),
        (BACKEND + '[[models]]\nname = "m"\ntargets = []', "models[0].targets"),
        (BACKEND + '[[models]]\nname = "m"\ntargets = [{ model = "x" }]', "models[0].targets[0].backend"),
        (BACKEND + MODEL + "window = 0", "models[0].window"),
        (BACKEND + MODEL + "window = { constrained-int = 1 }", "models[0].window"),
        (BACKEND + MODEL + "context = { low_water = 1 }", "models[0].context.low_water"),
        ('[context]\nstrategy = "summarise"', "context.strategy"),
        ("[context]\noverflow_status = 418", "context.overflow_status"),
        ("[context]\nsqueeze = { tool_output_tokens = 63 }", "context.squeeze.tool_output_tokens"),
        ("[context]\nsqueeze = { tool_output_tokens = true }", "context.squeeze.tool_output_tokens"),
        ('[context]\ncompletions_keep = "middle"', "context.completions_keep"),
        ("[context]\nreserve_tokens = -1", "context.reserve_tokens"),
        ("[cap]\nmax_tokens = 0", "cap.max_tokens"),
        ('[fuse]\nmode = "warn"', "fuse.mode"),
        ('[fuse.routes."/v1/my-route"]\nmode = "warn"', 'fuse.routes."/v1/my-route".mode'),
        ('[fuse.allow]\nnetworks = ["everywhere"]', "fuse.allow.networks[0]"),
        ('[telemetry]\nclient_ip = "yes"', "telemetry.client_ip"),
        ('[log]\nlevel = "loud"', "log.level"),
    ],
)
def test_an_error_has_its_key(text: str, key: str) -> None:
    assert key in keys(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[servers]\nport = 1", "servers"),
        ("[server]\nprot = 1", "server.prot"),
        ("[server]\nfoo-bar = 1", "server.foo-bar"),
        ("[server]\nint = 1", "server.int"),
        ('[server]\n"a b" = 1', 'server."a b"'),
        ("[admin]\nfoo = 1", "admin.foo"),
        (BACKEND + "url = 1", "backends[0].url"),
        (BACKEND + MODEL + "[models.fuse]\nlimit = 1", "models[0].fuse.limit"),
        ("[fuse.routes.a-b]\nx-y = 1", "fuse.routes.a-b.x-y"),
    ],
)
def test_an_unknown_key_is_refused_by_its_name(text: str, key: str) -> None:
    assert (key, "unknown key") in problems(text)


def test_all_errors_are_told_at_once() -> None:
    text = '[server]\nport = 70000\nprot = 1\n[log]\nlevel = "loud"\n[[callers]]\nname = "c"\nkey = "literal"'
    assert set(keys(text)) == {"server.port", "server.prot", "log.level", "callers[0].key"}


def test_the_error_as_text_has_every_key() -> None:
    with pytest.raises(ConfigError) as caught:
        read('[server]\nport = 70000\n[log]\nlevel = "loud"')
    assert "server.port: " in str(caught.value)
    assert "; log.level: " in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["x =", "[server", "\x00", "a = 1\na = 2", "a = " + "[" * 5000, "a = " + "9" * 5000, "a = 2020-13-40"],
    ids=["no value", "no bracket", "NUL", "twice", "deep", "long number", "no date"],
)
def test_what_is_not_toml_is_told(text: str) -> None:
    ((key, problem),) = problems(text)
    assert key == ""
    assert problem.startswith(("not TOML", "nested too deep"))


# --- secrets ---


def test_a_secret_comes_from_the_environment() -> None:
    config = read(BACKEND + 'auth = "config"\napi_key = "env:K"' + MODEL, {"K": f" {KEY}\n"})
    backend = config.backend("up")
    assert isinstance(backend, OpenAIBackend)
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == KEY


def test_a_secret_comes_from_a_file_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    config = read(BACKEND + 'auth = "config"\napi_key = "file:key"' + MODEL, folder=tmp_path)
    backend = config.backend("up")
    assert isinstance(backend, OpenAIBackend)
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == KEY


@pytest.mark.parametrize(
    "given",
    [
        f'"{KEY}"',
        '"env:"',
        '"env:UNSET"',
        '"env:BLANK"',
        '"ENV:K"',
        '"file:"',
        '"file:missing"',
        '"file:empty"',
        '"file:binary"',
        '"file:."',
        '"file:\\u0000"',
        "7",
        "true",
        "[]",
        f'{{ a = "{KEY}" }}',
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_shown(given: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    text = f'[[callers]]\nname = "c"\nkey = {given}\n'
    ((key, problem),) = problems(text, {"K": KEY, "BLANK": "  "}, tmp_path)
    assert key == "callers[0].key"
    assert KEY not in problem


def test_a_secret_is_never_shown() -> None:
    text = f"""
        [admin]
        token = "env:K"
        [[callers]]
        name = "c"
        key = "env:K"
        {BACKEND}
        auth = "config"
        api_key = "env:K"
        {MODEL}
        [[backends]]
        name = "up"
        kind = "openai"
        auth = "none"
    """
    with pytest.raises(ConfigError) as caught:
        read(text, {"K": KEY})
    assert KEY not in str(caught.value) + repr(caught.value)
    config = read(text[: text.rindex("[[backends]]")], {"K": KEY})
    shown = [repr(config), str(config), str(config.model_dump()), config.model_dump_json()]
    assert all(KEY not in text for text in shown)
    assert json.loads(shown[-1])["callers"][0]["key"] == "**********"


def test_an_error_elsewhere_shows_no_value() -> None:
    assert KEY not in str(problems(f'[server]\nhost = ["{KEY}"]\nport = "{KEY}"\nx = "{KEY}"'))


# --- without a file ---


def test_the_defaults_change_and_refuse_nothing() -> None:
    config = read()
    assert [(b.name, b.kind) for b in config.backends] == [("openai", "openai")]
    assert [m.name for m in config.models] == ["*"]
    assert config.context.strategy == "keep"
    assert config.cap == Cap()
    assert config.fuse.max_context_tokens is None
    assert config.passthrough() == "openai"
    (backend,) = config.backends
    assert isinstance(backend, OpenAIBackend)
    assert (backend.auth, backend.api_key, backend.base_url) == ("client", None, "https://api.openai.com/v1")


def test_the_embedded_model_alone_trims_by_default() -> None:
    config = read(embedded=True)
    assert [b.kind for b in config.backends] == ["openai", "embedded"]
    small, others = config.models
    assert (small.name, others.name) == ("smollm2", "*")
    assert config.context.overridden(small.context).strategy == "trim"
    assert config.context.overridden(others.context).strategy == "keep"


def test_the_environment_alone_is_enough() -> None:
    config = read(
        "",
        {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": "http://gateway:8000/v1",
            "CHATFUSE_HOST": "127.0.0.2",
            "CHATFUSE_PORT": "9000",
            "CHATFUSE_WORKERS": "3",
        },
    )
    assert (config.server.host, config.server.port, config.server.workers) == ("127.0.0.2", 9000, 3)
    (backend,) = config.backends
    assert isinstance(backend, OpenAIBackend)
    assert (backend.auth, backend.base_url) == ("config", "http://gateway:8000/v1")
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == KEY


def test_the_environment_stands_over_the_file() -> None:
    config = read("[server]\nport = 1\nhost = '127.0.0.1'", {"CHATFUSE_PORT": "2", "CHATFUSE_HOST": ""})
    assert (config.server.host, config.server.port) == ("127.0.0.1", 2)


def test_blank_variables_are_as_if_unset() -> None:
    (backend,) = read("", {"OPENAI_API_KEY": " ", "OPENAI_BASE_URL": ""}).backends
    assert isinstance(backend, OpenAIBackend)
    assert (backend.auth, backend.base_url) == ("client", "https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"CHATFUSE_PORT": "abc"}, "server.port"),
        ({"CHATFUSE_WORKERS": "0"}, "server.workers"),
        ({"OPENAI_BASE_URL": "nonsense"}, "backends[0].base_url"),
    ],
)
def test_a_wrong_variable_is_told(environ: dict[str, str], key: str) -> None:
    assert keys("", environ) == [key]


def test_a_file_with_models_gets_no_default_backends() -> None:
    assert [b.name for b in read(BACKEND + MODEL, {"OPENAI_API_KEY": KEY}, embedded=True).backends] == ["up"]
