"""A model's own tokenizer, read from the files that come with it.

Four kinds of file: `tokenizer.json` (Hugging Face), a sentencepiece `.model`, a rank file of tiktoken's kind
(Llama 3 calls it `tokenizer.model` too, Qwen 1 `qwen.tiktoken`), and Mistral's `tekken.json`. The kind is read
off the bytes, not the name. Each needs its library, and none is loaded before a file asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

CONFIG = "tokenizer_config.json"
_SPECIAL_MAP = "special_tokens_map.json"
# In this order: a folder with several describes one tokenizer, and servers prefer it so (transformers 5.24,
# TokenizersBackend.convert_to_native_format; llama.cpp and vLLM read what transformers reads).
_NAMES = ("tokenizer.json", "tekken.json", "tokenizer.model")
_PATTERNS = ("*.tiktoken", "*.model", "*.model.v*", "tekken*.json")
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


class TokenizerFileError(ValueError):
    """A tokenizer cannot be had from a file; the message names the file and the problem."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class Tokenizer(Protocol):
    """Counts the tokens of a rendered prompt."""

    @property
    def name(self) -> str:
        """Tokenizers of one name count alike: the kind of file and a digest of what was read."""
        ...

    @property
    def special(self) -> Sequence[str]:
        """Strings that are one token of their own wherever they stand, and part what is on their two sides."""
        ...

    @property
    def added(self) -> int | None:
        """Tokens that are added to a text that no template has rendered (a BOS, as a rule); None: not known."""
        ...

    def count(self, text: str) -> int:
        """The tokens of a text: special tokens in it are read as such, none is added. Thread-safe."""
        ...


def load(path: Path) -> Tokenizer:
    """The tokenizer of a model's folder, or of one file."""
    file = _find(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TokenizerFileError(file, error.strerror or str(error)) from None
    config = read_config(file.parent)
    if data.lstrip()[:1] == b"{":
        return _load_json(file, data, config)
    if _RANK_LINE.match(data):
        from proxy.tokens.tokenizer_ranks import load_ranks

        return load_ranks(file, data, config)
    if data[:1] == b"\n":  # field 1 of the protocol buffer, `pieces`
        from proxy.tokens.tokenizer_sentencepiece import load_sentencepiece

        return load_sentencepiece(file, data, config)
    if data.startswith(b"version https://git-lfs"):
        raise TokenizerFileError(file, "only a Git LFS pointer; fetch the file itself")
    raise TokenizerFileError(
        file,
        "neither a tokenizer.json, nor a sentencepiece model, nor a rank file (tiktoken), nor a tekken.json",
    )


def _load_json(file: Path, data: bytes, config: Mapping[str, Any]) -> Tokenizer:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise TokenizerFileError(file, f"not JSON: {error}") from None
    if isinstance(content.get("model"), dict):
        from proxy.tokens.tokenizer_json import load_json

        return load_json(file, data, config)
    if isinstance(content.get("vocab"), list) and isinstance(content.get("config"), dict):
        from proxy.tokens.tokenizer_ranks import load_tekken

        return load_tekken(file, data, content)
    raise TokenizerFileError(
        file, "JSON, but neither a tokenizer.json (no `model`) nor a tekken.json (no `vocab`)"
    )


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise TokenizerFileError(path, "no such file or folder")
    for name in _NAMES:
        if (path / name).is_file():
            return path / name
    found = sorted({file for pattern in _PATTERNS for file in path.glob(pattern)})
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found)
        raise TokenizerFileError(path, f"several tokenizers ({names}); name the file itself")
    raise TokenizerFileError(path, f"no tokenizer in it ({', '.join((*_NAMES, '*.tiktoken', '*.model'))})")


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no such file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerFileError(file, error.strerror or str(error)) from None
    except ValueError as error:
        raise TokenizerFileError(file, f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise TokenizerFileError(file, "not a JSON object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's tokenizer_config.json. Where it does not list the added tokens, it is of the days when
    special_tokens_map.json had the last word (transformers 5.24, tokenization_utils_base.py)."""
    config = read_object(folder / CONFIG)
    return config if "added_tokens_decoder" in config else config | read_object(folder / _SPECIAL_MAP)


def name_of(kind: str, *parts: bytes) -> str:
    """A tokenizer's name: its kind and a digest of everything that decides its counts."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{kind}:{digest.hexdigest()}"


def added_by(config: Mapping[str, Any]) -> int | None:
    """The tokens that a tokenizer_config.json adds to a text, where there is no tokenizer.json to say it."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return None  # transformers adds none, llama.cpp and mistral-common add a BOS
    return int(bool(config.get("add_bos_token"))) + int(bool(config.get("add_eos_token")))


def token_text(value: Any) -> str | None:
    """The string of a token that a config gives as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def replace_surrogates(text: str) -> str:
    """The text with pairs of surrogates joined and lone ones replaced: no tokenizer takes them as they are."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
