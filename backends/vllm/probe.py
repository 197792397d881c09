"""Asks an installed vLLM what it is: its version, and its own list of arguments, which is kept for the next time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.child_output import what_mattered
from backends.vllm.flags import EngineArguments, parse

MODULE = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` command: it looks for a distribution of that name, which builds for a CPU do not have."""

_WHERE = """
import importlib.util, json, os, re
spec = importlib.util.find_spec("vllm")
folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
version = made = ""
if folder:
    file = os.path.join(folder, "_version.py")
    try:
        made = str(os.stat(file).st_mtime_ns)
        found = re.search(r"^__version__ *=.*?['\\"]([^'\\"]+)['\\"]", open(file).read(), re.M)
        version = found.group(1) if found else ""
    except OSError:
        pass
print(json.dumps({"folder": folder, "version": version, "made": made}))
"""
"""Run by the engine's Python. Imports nothing of vLLM, which would take seconds."""
_WHERE_S = 60.0
_HELP_S = 300.0


class NoEngine(Exception):
    """The command does not run a Python that has vLLM: one sentence that says what to change."""


async def arguments(command: Sequence[str], env: Mapping[str, str], kept_in: Path) -> EngineArguments:
    """The arguments that this engine takes. Its first answer takes it some ten seconds. Raises NoEngine."""
    where = await _where(command, env)
    digest = hashlib.sha256(json.dumps([list(command), where], sort_keys=True).encode()).hexdigest()[:32]
    kept = kept_in / f"arguments-{digest}.json"
    with contextlib.suppress(OSError, ValueError):
        return EngineArguments.restore(kept.read_text())
    version = where["version"] or "of unknown version"
    known = await _asked(command, env, version)
    with contextlib.suppress(OSError):
        _keep(kept, known)
    return known


def _keep(file: Path, known: EngineArguments) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(known.dump())
    new.replace(file)


async def _where(command: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    code, out, err = await _run([*command, "-c", _WHERE], env, _WHERE_S)
    try:
        where: dict[str, str] = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise NoEngine(f"{command[0]} does not run Python (exit code {code}): {_short(err)}") from None
    if not where["folder"]:
        raise NoEngine(
            f"vLLM is not installed for {' '.join(command)}: pip install vllm there, "
            "or set command to a Python that has it"
        )
    return where


async def _asked(command: Sequence[str], env: Mapping[str, str], version: str) -> EngineArguments:
    for question in ("--help=all", "--help"):
        code, out, err = await _run([*command, "-m", MODULE, question], env, _HELP_S)
        known = parse(out, version)
        if code == 0 and "--model" in known:
            return known
    raise NoEngine(f"vLLM {version} does not tell its arguments: {_short(err)}")


async def _run(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        why = error.strerror or error
        raise NoEngine(f"{argv[0]} cannot be run: {why}: set command to the engine's Python") from None
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise NoEngine(f"{argv[0]} does not answer in {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def _short(err: str) -> str:
    return what_mattered([line for line in err.splitlines() if line.strip()], keep=1, max_chars=300)
