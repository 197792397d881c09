"""Where models and compiled kernels are kept: resolved in one place, made, and checked before an engine starts.

Defaults: huggingface_hub ("Environment variables": HF_HOME, HF_HUB_CACHE), vLLM (envs.py: VLLM_CACHE_ROOT). Torch and
Triton would compile into the temporary folder and the home folder; here they do so beside vLLM's own compiled graphs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.vllm import model_folder

VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_OLD_HUB_CACHE = "HUGGINGFACE_HUB_CACHE"
_VANISHING = frozenset(("overlay", "overlayfs", "aufs", "tmpfs", "ramfs"))
GIB = 1024**3
LEAST_FREE_BYTES = GIB
"""For compiled graphs and kernels; those of a large model are some hundred megabytes."""


class CacheUnusable(Exception):
    """A cache folder cannot be used: one sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class Caches:
    """The folders by the variable that tells the engine of them, and what is to be known of them."""

    folders: Mapping[str, Path]
    warnings: Sequence[str] = ()

    @property
    def hub(self) -> Path:
        return self.folders["HF_HUB_CACHE"]

    @property
    def own(self) -> Path:
        """For what chatfuse itself remembers of an engine."""
        return self.folders["VLLM_CACHE_ROOT"] / "chatfuse"

    def env(self) -> dict[str, str]:
        return {name: str(folder) for name, folder in self.folders.items()}


def resolve(cache_dir: Path | None, own_env: Mapping[str, str], environ: Mapping[str, str]) -> Caches:
    """Which folders are used. `own_env`: the config's, which stands over `cache_dir`; that over `environ`. Pure."""
    home = Path(environ.get("HOME") or "/")
    general = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders: dict[str, Path] = {}
    warnings: list[str] = []

    def choose(name: str, below: str, default: Path) -> None:
        given = own_env.get(name) or None
        inherited = environ.get(name) or (environ.get(_OLD_HUB_CACHE) if name == "HF_HUB_CACHE" else None)
        ours = cache_dir / below if cache_dir is not None else None
        folders[name] = Path(given) if given else ours or (Path(inherited) if inherited else default)
        if cache_dir is None:
            return
        if given and not Path(given).is_relative_to(cache_dir):
            warnings.append(f"env.{name} = {given} lies outside cache_dir = {cache_dir}, and is used")
        elif inherited and not given and not Path(inherited).is_relative_to(cache_dir):
            warnings.append(
                f"{name} = {inherited} in the environment is not used: cache_dir = {cache_dir} is"
            )

    choose("HF_HOME", "huggingface", general / "huggingface")
    choose("HF_HUB_CACHE", "huggingface/hub", folders["HF_HOME"] / "hub")
    choose("VLLM_CACHE_ROOT", "vllm", general / "vllm")
    choose("TORCHINDUCTOR_CACHE_DIR", "vllm/torchinductor", folders["VLLM_CACHE_ROOT"] / "torchinductor")
    choose("TRITON_CACHE_DIR", "vllm/triton", folders["VLLM_CACHE_ROOT"] / "triton")
    return Caches({name: folder.expanduser().absolute() for name, folder in folders.items()}, warnings)


def vanishing(caches: Caches, mountinfo: str, *, needs_hub: bool) -> list[str]:
    """Folders that go with their container, by the text of /proc/self/mountinfo (proc(5)). Pure."""
    out = []
    for name in ("HF_HUB_CACHE", "VLLM_CACHE_ROOT"):
        if name == "HF_HUB_CACHE" and not needs_hub:
            continue
        folder = caches.folders[name]
        kind = filesystem(folder, mountinfo)
        if kind in _VANISHING:
            what, volume = (
                ("the model", "models") if name == "HF_HUB_CACHE" else ("what it compiles", "kernels")
            )
            out.append(
                f"{name} = {folder} is lost with the container ({kind}), and {what} with it: mount a volume there "
                f"(-v {volume}:{folder}), or set cache_dir to a volume"
            )
    return out


def filesystem(folder: Path, mountinfo: str) -> str:
    """The kind of file system that a path is on; empty when that is not known."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))  # spaces are \040
        # Of mounts one above the other the last one is seen.
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def make(caches: Caches, needed_bytes: int) -> None:
    """Makes the folders and checks that they can be written. `needed_bytes`: still to come into the hub's cache.

    Raises CacheUnusable.
    """
    for name, folder in caches.folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheUnusable(f"{name} = {folder} cannot be made: {error.strerror}: {_ELSEWHERE}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CacheUnusable(f"{name} = {folder} may not be written by this user: {_ELSEWHERE}")
        # What is already there of a compile cache costs nothing more; a full disk does.
        wanted = (
            needed_bytes if name == "HF_HUB_CACHE" else LEAST_FREE_BYTES if name == "VLLM_CACHE_ROOT" else 0
        )
        free = shutil.disk_usage(folder).free
        if free < wanted:
            raise CacheUnusable(
                f"{name} = {folder} has {free / GIB:.1f} GiB free, and {wanted / GIB:.1f} GiB are needed: {_ELSEWHERE}"
            )


_ELSEWHERE = "set cache_dir to another folder"


def all_there(names: Sequence[str], hub: Path, revision: str | None) -> bool:
    """Whether all these models are on this machine, so that the hub need not be asked. Raises BadModel."""
    for i, name in enumerate(names):
        folder = model_folder.find(name, hub, revision if i == 0 else None)
        if folder is None:
            return False
        found = model_folder.weights(folder)
        if not all(file.exists() for file in found.files):
            return False
        if not found.files and folder.is_relative_to(hub):
            return False
    return True
