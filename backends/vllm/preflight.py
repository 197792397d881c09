"""All that can be known before an engine is started: its arguments, caches and model. `chatfuse check` tells it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.vllm import cachedir, model_folder, options, probe
from backends.vllm.cachedir import Caches, CacheUnusable
from backends.vllm.model_folder import BadModel, Weights
from backends.vllm.options import EngineOptions

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_HUB_TOKENS = frozenset(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"))


class Impossible(Exception):
    """The engine cannot be started: all that is wrong, as (key, problem) pairs."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {problem}" for key, problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the engine is started with, and what is to be told of it."""

    version: str
    command: Sequence[str]
    argv: Sequence[str]
    """Its arguments, without where it listens."""
    env: Mapping[str, str]
    caches: Caches
    weights: Weights
    offline: bool
    """All models are here: the hub is not asked."""
    warnings: Sequence[str]


def command_of(given: EngineOptions) -> Sequence[str]:
    return given.command or (sys.executable,)


async def prepare(given: EngineOptions, environ: Mapping[str, str] | None = None) -> Prepared:
    """Makes the cache folders and looks at everything. Raises Impossible with all that is wrong."""
    environ = os.environ if environ is None else environ
    caches = cachedir.resolve(given.cache_dir, given.env, environ)
    env = engine_env(given, environ, caches)
    wrong: list[tuple[str, str]] = []
    folder = weights = None
    offline = False
    try:
        folder, weights, offline = await asyncio.to_thread(_model, given, caches)
    except BadModel as error:
        wrong.append(("model", str(error)))
    try:
        needed = 0 if offline or folder is None else model_folder.missing_bytes(folder) or 0
        await asyncio.to_thread(cachedir.make, caches, needed)
    except CacheUnusable as error:
        wrong.append(("cache_dir", str(error)))
    argv: list[str] = []
    version = ""
    command = command_of(given)
    try:
        known = await probe.arguments(command, env, caches.own)
        version = known.version
        wrong += options.problems(given, known)
        argv = options.argv(given, known)
    except probe.NoEngine as error:
        wrong.append(("command", str(error)))
    if wrong:
        raise Impossible(wrong)
    if offline:
        env.setdefault("HF_HUB_OFFLINE", "1")
    warnings = [*caches.warnings, *_vanishing(caches, folder)]
    return Prepared(version, command, argv, env, caches, weights or Weights(), offline, warnings)


def engine_env(given: EngineOptions, environ: Mapping[str, str], caches: Caches) -> dict[str, str]:
    """The engine's environment: ours without our keys, the caches, and what the config says. Pure."""
    inherited = {
        name: value for name, value in environ.items() if name in _HUB_TOKENS or not _SECRET_NAME.search(name)
    }
    # Not from the current folder, which may hold a folder named vllm.
    return {**inherited, "PYTHONSAFEPATH": "1", **caches.env(), **given.env}


def _model(given: EngineOptions, caches: Caches) -> tuple[Path | None, Weights, bool]:
    flags = given.flags
    revision = flags.get("revision")
    folder = model_folder.find(given.model, caches.hub, revision)
    names = [given.model]
    if flags.get("tokenizer"):
        names.append(str(flags["tokenizer"]))
    if (draft := (flags.get("speculative") or {}).get("model")) is not None:
        names.append(str(draft))
    names += [str(path) for path in (flags.get("lora_modules") or {}).values()]
    offline = cachedir.all_there(names, caches.hub, revision)
    if folder is None:
        return None, Weights(), offline
    if offline or not folder.is_relative_to(caches.hub):
        model_folder.check(folder, own_tokenizer="tokenizer" not in flags)
    return folder, model_folder.weights(folder), offline


def _vanishing(caches: Caches, folder: Path | None) -> list[str]:
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    return cachedir.vanishing(caches, mounts, needs_hub=folder is None or folder.is_relative_to(caches.hub))
