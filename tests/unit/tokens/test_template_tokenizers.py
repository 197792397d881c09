"""Tokenizers from every kind of file, equal to the library that the file is of; errors that name it."""

import json
import random
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from proxy.tokens.segments import _NASTY
from proxy.tokens.tokenizer_files import TokenizerFileError, load
from tests.unit.tokens.template_models import package

tokenizers = pytest.importorskip("tokenizers")


def texts(number: int, special: Sequence[str] = ()) -> Iterator[str]:
    """Texts of nasty pieces and special tokens; without special tokens none may come about by chance."""
    dice = random.Random(number)
    pieces = [piece for piece in _NASTY if special or piece != "<s"]
    for _ in range(number):
        yield "".join(
            dice.choice(special) if special and dice.random() < 0.3 else dice.choice(pieces)
            for _ in range(dice.randint(1, 8))
        )


# ---- tokenizer.json ----


def write_json(folder: Path, config: dict[str, Any] | None = None) -> None:
    words = {"?": 0, "a": 1, "b": 2, "<s>": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>"])
    made.enable_truncation(3)
    made.enable_padding(length=9)
    made.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_with_a_tokenizer_json(tmp_path: Path) -> None:
    write_json(tmp_path)
    one = load(tmp_path)
    assert one.special == ["<s>"]
    assert one.count("<s>a b<s> a b") == 6  # neither cut off nor filled up
    assert load(tmp_path / "tokenizer.json").name == one.name
    assert one.count("a \ud83d") == 2


def test_tokens_that_only_the_config_knows(tmp_path: Path) -> None:
    write_json(tmp_path)
    bare = load(tmp_path)
    config = {
        "added_tokens_decoder": {
            "3": {"content": "<s>", "special": True},
            "4": {"content": "<t>", "rstrip": True, "special": False},
        },
        "eos_token": "</s>",
        "pad_token": None,
        "extra_special_tokens": {"image_token": "<image>"},
        "additional_special_tokens": [{"content": "<u>", "lstrip": True}],
    }
    write_json(tmp_path, config)
    one = load(tmp_path)
    assert one.special == ["</s>", "<image>", "<s>", "<t>"]
    assert one.count("a<t> b</s><u>") == 5
    assert one.name != bare.name


def test_special_tokens_read_as_text_where_the_config_says_so(tmp_path: Path) -> None:
    write_json(tmp_path, {"split_special_tokens": True})
    one = load(tmp_path)
    assert one.special == []
    assert one.count("<s>") == 3


# ---- sentencepiece ----

MODELS = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
)


@pytest.mark.parametrize("file", MODELS)
def test_sentencepiece_equals_mistral_common(file: str) -> None:
    path = package("mistral_common") / "data" / file
    reference = pytest.importorskip("mistral_common.tokens.tokenizers.sentencepiece")
    theirs = reference.SentencePieceTokenizer(path)
    ours = load(path)
    for text in texts(500):
        assert ours.count(text) == len(theirs.encode(text, bos=False, eos=False)), repr(text)
    # As mistral-common puts a request together: control tokens, and each text by itself.
    parts = list(texts(50))
    apart = sum(len(theirs.encode(text, bos=False, eos=False)) + 1 for text in parts)
    assert ours.count("".join("<s>" + text for text in parts)) == apart


def test_sentencepiece_without_a_space_after_special_tokens(tmp_path: Path) -> None:
    shutil.copy(package("mistral_common") / "data" / MODELS[0], tmp_path / "tokenizer.model")
    old = load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"legacy": False, "added_tokens_decoder": {"9": {"content": "<|x|>"}}})
    )
    new = load(tmp_path)
    assert old.name != new.name
    assert "<|x|>" in new.special
    assert old.count("a") == new.count("a") == 1
    assert old.count("<s>\n") == 1 + 2
    assert new.count("<s>\n") == 1 + 1
    assert new.count("<|x|>\ud83d") > 1


# ---- ranks ----


def test_llama_3_equals_llama_models() -> None:
    path = package("llama_models") / "llama3" / "tokenizer.model"
    reference = pytest.importorskip("llama_models.llama3.tokenizer")
    theirs, ours = reference.Tokenizer(path), load(path)
    assert set(theirs.special_tokens) == set(ours.special)
    for text in texts(500, list(ours.special)):
        expected = theirs.encode(text, bos=False, eos=False, allowed_special="all")
        assert ours.count(text) == len(expected), repr(text)


def test_qwen_1_equals_qwen_agent() -> None:
    folder = package("qwen_agent") / "utils"
    # The pattern as it stands there; to import the module takes much that nothing here needs.
    [line] = re.findall(
        r"^PAT_STR = r\"\"\"(.*)\"\"\"$", (folder / "tokenization_qwen.py").read_text(), re.MULTILINE
    )
    ours = load(folder / "qwen.tiktoken")
    ranks = {b64decode(token): int(rank) for token, rank in _lines(folder / "qwen.tiktoken")}
    numbered = {token: len(ranks) + number for number, token in enumerate(ours.special)}
    theirs = tiktoken.Encoding("qwen", pat_str=line, mergeable_ranks=ranks, special_tokens=numbered)
    for text in texts(500, ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|extra_204|>"]):
        assert ours.count(text) == len(theirs.encode(text, allowed_special="all")), repr(text)


def _lines(file: Path) -> Iterator[list[bytes]]:
    return (line.split() for line in file.read_bytes().splitlines())


@pytest.mark.parametrize("file", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken_equals_mistral_common(file: str) -> None:
    path = package("mistral_common") / "data" / file
    reference = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    theirs, ours = reference.Tekkenizer.from_file(path), load(path)
    for text in texts(500):
        assert ours.count(text) == len(theirs.encode(text, bos=False, eos=False)), repr(text)
    assert ours.count("[INST]a[/INST]") == 3
    assert len(ours.special) == 1000


def test_a_million_spaces_are_counted() -> None:
    ours = load(package("llama_models") / "llama3" / "tokenizer.model")
    assert ours.count("<|eot_id|>" + " " * 1_000_000 + "x") > 1000


# ---- errors ----


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "not JSON"),
        (b"{}", "neither a tokenizer.json"),
        (b'{"model": {}}', "tokenizers does not take it"),
        (b'{"vocab": [], "config": {}}', "not a tekken.json"),
        (b"\nnonsense", "sentencepiece does not take it"),
        (b"YQ== 0\nnonsense\n", "line 2 is not a base64 token"),
        (b"YQ== 0\nYg== 1\n", "a rank file of 2 tokens, and it does not say how it splits text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "only a Git LFS pointer"),
        (b"\x00", "neither a tokenizer.json, nor a sentencepiece model"),
        (b"", "neither a tokenizer.json, nor a sentencepiece model"),
    ],
)
def test_files_that_are_no_tokenizer(content: bytes, problem: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    file = tmp_path / "tokenizer.model"
    file.write_bytes(content)
    with pytest.raises(TokenizerFileError, match=problem) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(f"{file}: ")


def test_folders_without_one_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(TokenizerFileError, match="no tokenizer in it"):
        load(tmp_path)
    (tmp_path / "a.model").touch()
    (tmp_path / "b.tiktoken").touch()
    with pytest.raises(TokenizerFileError, match=r"several tokenizers \(a.model, b.tiktoken\)"):
        load(tmp_path)
    write_json(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerFileError, match=r"tokenizer_config.json: not a JSON object"):
        load(tmp_path)
