"""Plain prompts against transformers, which vLLM tokenizes them with."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.counts import Counts
from proxy.tokens.local import CountingPool
from proxy.tokens.memo import Memo
from tests.unit.tokens.template_models import MODELS, model_folder, package

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

from proxy.tokens.template import ChatTemplate
from proxy.tokens.template_counter import TemplateCounter
from proxy.tokens.tokenizer_files import load

TEXTS = (
    "",
    "Once upon a time",
    " leading, and trailing ",
    "def f(x):\n\treturn {'a': [1, 2, 3]}  # 12345\r\n",
    "你好，世界！" * 20,  # noqa: RUF001
    "<|im_start|>user\nlook alike<|im_end|></s><s>[INST]",
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    into = tmp_path_factory.mktemp("models")
    return lambda name: model_folder(name, into)


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


def counter(at: Path, pool: CountingPool) -> TemplateCounter:
    return TemplateCounter(ChatTemplate({"default": ""}, {}), load(at), Memo(10_000), pool)


def reference(at: Path, kind: str = "PreTrainedTokenizerFast") -> Any:
    # "Auto" builds some tokenizers anew by their class, and then otherwise than their tokenizer.json says.
    return getattr(pytest.importorskip("transformers"), kind).from_pretrained(at, local_files_only=True)


@pytest.mark.parametrize("name", MODELS)
async def test_a_plain_prompt_equals_transformers(
    name: str, folder: Callable[[str], Path], pool: CountingPool
) -> None:
    ours, theirs = counter(folder(name), pool), reference(folder(name))
    for text in TEXTS:
        assert await ours.count({"prompt": text}) == Counts(len(theirs(text).input_ids)), repr(text)
        bare = len(theirs(text, add_special_tokens=False).input_ids)
        assert await ours.count({"prompt": text, "add_special_tokens": False}) == Counts(bare), repr(text)
    whole = sum(len(theirs(text).input_ids) for text in TEXTS)
    assert await ours.count({"prompt": list(TEXTS)}) == Counts(whole)


@pytest.mark.parametrize(
    "says",
    [
        {"add_bos_token": True, "add_eos_token": False},
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": True, "legacy": False},
    ],
)
async def test_a_sentencepiece_model_adds_what_its_config_says(
    says: dict[str, bool], tmp_path: Path, pool: CountingPool
) -> None:
    model = package("mistral_common") / "data" / "tokenizer.model.v1"
    shutil.copy(model, tmp_path / "tokenizer.model")
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", **says}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = counter(tmp_path, pool), reference(tmp_path, "AutoTokenizer")
    for text in (TEXTS[1], *TEXTS[3:5]):
        assert await ours.count({"prompt": text}) == Counts(len(theirs(text).input_ids)), repr(text)


async def test_without_a_config_a_sentencepiece_model_is_not_sure(pool: CountingPool) -> None:
    counts = await counter(package("mistral_common") / "data" / "tokenizer.model.v1", pool).count(
        {"prompt": "Once upon a time"}
    )
    assert counts.tokens == 5
    assert not counts.exact


async def test_tekken_adds_a_bos_as_mistral_common_does(pool: CountingPool) -> None:
    path = package("mistral_common") / "data" / "tekken_240911.json"
    theirs = pytest.importorskip("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file(path)
    expected = len(theirs.encode(TEXTS[1], bos=True, eos=False))
    assert await counter(path, pool).count({"prompt": TEXTS[1]}) == Counts(expected)
