"""Our encodings are tiktoken's, and models find theirs."""

from typing import Any

import pytest
import tiktoken
from tiktoken_ext import openai_public  # type: ignore[import-untyped]

from proxy.tokens import ranks
from proxy.tokens.encodings import ALIASES, RECIPES, encoding, encoding_name


@pytest.mark.parametrize("name", RECIPES)
def test_an_encoding_is_made_of_what_tiktoken_makes_it_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shipped(url: str, expected_hash: str) -> dict[bytes, int]:
        loaded = ranks.load(url.rsplit("/", 1)[-1].removesuffix(".tiktoken"))
        assert ranks.TIKTOKEN_SHA256[RECIPES[name].ranks] == expected_hash
        return loaded

    # In the place of a download: the constructors are then tiktoken's own in everything else.
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", shipped)
    made: dict[str, Any] = openai_public.ENCODING_CONSTRUCTORS[name]()
    assert RECIPES[name].pattern == made["pat_str"]
    assert RECIPES[name].special == made["special_tokens"]
    text = "Hello, wörld! <|endoftext|> 你好 12345\n\n  don't"
    theirs = tiktoken.Encoding(**made)
    assert encoding(name).encode(text, disallowed_special=()) == theirs.encode(text, disallowed_special=())
    assert encoding(name).n_vocab == theirs.n_vocab


def test_an_encoding_is_built_once() -> None:
    assert encoding("r50k_base") is encoding("r50k_base")
    assert encoding("gpt2") is encoding(ALIASES["gpt2"])


def test_known_tokens() -> None:
    assert encoding("o200k_base").encode("hello world") == [24912, 2375]
    assert encoding("cl100k_base").encode("hello world") == [15339, 1917]
    assert encoding("gpt2").encode("hello world") == [31373, 995]
    assert encoding("o200k_harmony").encode("<|start|>", allowed_special="all") == [200006]


def test_an_unknown_encoding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="o200k_base"):
        encoding("nothing")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini-2024-07-18", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("openrouter/openai/gpt-4.1-mini", "o200k_base"),
        ("azure:gpt-4", "cl100k_base"),
        ("GPT-4o", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("gpt-4.5-preview", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("gpt-35-turbo-16k", "cl100k_base"),
        ("o1-mini", "o200k_base"),
        ("o3", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("o4-mini-2025-04-16", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("gpt-5.2-chat-latest", "o200k_base"),
        ("gpt-5.2_2025-12-11", "o200k_base"),
        ("gpt-oss-120b", "o200k_harmony"),
        ("openai/gpt-oss-20b", "o200k_harmony"),
        ("ft:gpt-4o-mini:acme::abc", "o200k_base"),
        ("ft:gpt-4.1:acme::abc", "o200k_base"),
        ("ft:gpt-3.5-turbo-0125:acme::abc", "cl100k_base"),
        ("ft:davinci-002:acme", "cl100k_base"),
        ("text-davinci-003", "p50k_base"),
        ("text-davinci-edit-001", "p50k_edit"),
        ("davinci", "r50k_base"),
        ("gpt2", "gpt2"),
        ("claude-sonnet-4", None),
        ("meta-llama/Llama-3.1-8B", None),
        ("acme/gpt-4o", None),
        ("o3x", None),
        ("", None),
    ],
)
def test_a_model_finds_its_encoding(model: str, name: str | None) -> None:
    assert encoding_name(model) == name
