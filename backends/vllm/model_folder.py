"""A model's files on disk, as vLLM will read them: where they are, whether they are whole, in which order.

Looked at before the engine is started: what is wrong here the engine would tell after half a minute, in fifty lines.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONFIGS = ("config.json", "params.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json")
_TOKENIZER_PATTERNS = ("*.tiktoken", "tokenizer.model.*", "*.model")
_ONLY_SETTINGS = "tokenizer_config.json"
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself (safetensors, `MAX_HEADER_SIZE`)."""


class BadModel(Exception):
    """The model cannot be loaded: one sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class Weights:
    """`files` in the order in which vLLM loads them."""

    files: Sequence[Path] = ()
    size_bytes: int = 0


def find(model: str, hub_cache: Path, revision: str | None = None) -> Path | None:
    """The model's folder, or its one file; None when it is a name on the hub that the cache does not have.

    Raises BadModel for a path with nothing at its end. (Layout of the cache: huggingface_hub, "Understand caching".)
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise BadModel(f"there is nothing at {path}")
    repository = hub_cache / f"models--{model.replace('/', '--')}"
    name = revision or "main"
    reference = repository / "refs" / name
    with contextlib.suppress(OSError):  # a commit instead of a branch, or not there
        name = reference.read_text().strip()
    snapshot = repository / "snapshots" / name
    return snapshot if snapshot.is_dir() else None


def weights(folder: Path) -> Weights:
    """The safetensors of a folder; none when it has another format, which is then not looked into."""
    if folder.is_file():
        return Weights((folder,), folder.stat().st_size)
    files = sorted(_wanted(folder), key=_natural)
    return Weights(files, sum(file.stat().st_size for file in files if file.exists()))


def missing_bytes(folder: Path) -> int | None:
    """What is still to be fetched of a model that is only partly there; None when its files do not tell."""
    index = _index(folder)
    total = index.get("metadata", {}).get("total_size") if index is not None else None
    return max(0, int(total) - weights(folder).size_bytes) if isinstance(total, int | float) else None


def check(folder: Path, *, own_tokenizer: bool = True) -> None:
    """Raises BadModel for what vLLM would fail on. `own_tokenizer`: none is named elsewhere."""
    if folder.is_file():
        return
    names = {entry.name for entry in folder.iterdir()}
    if not names & set(_CONFIGS):
        raise BadModel(f"{folder} has no config.json: it is not the folder of a model")
    has_tokenizer = names & (set(_TOKENIZERS) - {_ONLY_SETTINGS}) or any(
        any(folder.glob(pattern)) for pattern in _TOKENIZER_PATTERNS
    )
    if own_tokenizer and not has_tokenizer:
        raise BadModel(
            f"{folder} has no tokenizer (tokenizer.json, tokenizer.model or tekken.json): "
            "copy it there from where the model came from, or set tokenizer"
        )
    for file in weights(folder).files:
        if problem := damage(file):
            raise BadModel(problem)


def damage(file: Path) -> str | None:
    """Why a safetensors file cannot be loaded; None when its length is what its header says."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            if not 0 < length <= min(_MAX_HEADER_BYTES, size):
                return f"{file} is not a safetensors file: copy or download it again"
            header: Any = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return f"{file} is not a safetensors file: copy or download it again"
    wanted = 8 + length + max(ends, default=0)
    if size < wanted:
        return f"{file} is not whole: {size:,} of {wanted:,} bytes: copy or download it again"
    return None


def _wanted(folder: Path) -> Iterable[Path]:
    """The files that the index names, also those that are not there; without one, every safetensors file."""
    index = _index(folder)
    if index is not None and isinstance(index.get("weight_map"), dict):
        return {folder / str(name) for name in index["weight_map"].values()}
    return folder.glob("*.safetensors")


def _index(folder: Path) -> Mapping[str, Any] | None:
    try:
        read: Any = json.loads((folder / "model.safetensors.index.json").read_bytes())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def _natural(file: Path) -> list[tuple[int, str]]:
    """vLLM's order: by name, numbers as numbers (weight_utils.py, `_natural_sort_key`)."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", file.name)]
