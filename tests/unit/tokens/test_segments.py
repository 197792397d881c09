"""Pieces of a prompt add up to the whole, with every tokenizer; where they would not, there are none."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.memo import Memo
from proxy.tokens.segments import _NASTY, Cutter, SegmentCounter, dividers
from tests.unit.tokens.template_models import MODELS, cached, model_folder, package

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, normalizers, pre_tokenizers  # noqa: E402

from proxy.tokens.tokenizer_files import Tokenizer, load  # noqa: E402
from proxy.tokens.tokenizer_json import JsonTokenizer  # noqa: E402

FRAGMENTS = (
    *_NASTY,
    "a",
    "B",
    "é",
    "\u0301",
    "\u0338",
    " ",
    "\n",
    "0",
    "\u4e00",
    "İ",
    "ǅ",
    "\u017f",
    "_",
    "<|a",
    "a>",
)


def texts(special: tuple[str, ...]) -> st.SearchStrategy[str]:
    piece = st.sampled_from(FRAGMENTS) | st.text(max_size=4)
    tokens = st.sampled_from(special) if special else st.nothing()
    return st.lists(piece | tokens, max_size=16).map("".join).map(whole)


def whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# ---- cutting ----


def test_cut_pieces_begin_with_their_token_and_join_to_the_text() -> None:
    cut = Cutter(["<s>", "<s>>", "[X]"]).cut
    assert cut("a<s>b[X]<s>>c") == ["a", "<s>b", "[X]", "<s>>c"]
    assert cut("<s>") == ["<s>"]
    assert cut("") == []
    assert Cutter([]).cut("a<s>") == ["a<s>"]


@given(
    st.lists(st.text("<|ab", min_size=1, max_size=4), min_size=1, max_size=9), st.text("<|abc", max_size=30)
)
def test_the_longest_of_several_tokens_is_found(words: list[str], text: str) -> None:
    expected, at, piece = [], 0, ""
    while at < len(text):
        found = max((word for word in words if text.startswith(word, at)), key=len, default="")
        if found and piece:
            expected.append(piece)
            piece = ""
        step = found or text[at]
        piece += step
        at += len(step)
    assert Cutter(words).cut(text) == expected + [piece] * bool(piece)


def test_tokens_and_rests() -> None:
    cutter = Cutter(["<s>"])
    assert list(cutter.tokens_and_rests("a<s>b<s>")) == [("", "a"), ("<s>", "b"), ("<s>", "")]


# ---- real tokenizers ----


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    into = tmp_path_factory.mktemp("models")
    return cached(lambda name: load(model_folder(name, into)))


FILES = {
    "mistral_common": (
        "data/tokenizer.model.v1",
        "data/mistral_instruct_tokenizer_240216.model.v2",
        "data/mistral_instruct_tokenizer_240323.model.v3",
        "data/tekken_240911.json",
    ),
    "llama_models": ("llama3/tokenizer.model",),
    "qwen_agent": ("utils/qwen.tiktoken",),
}


def adds_up(one: Tokenizer, dice: random.Random, number: int) -> None:
    counter = SegmentCounter(one, Memo(10))
    assert not counter.whole
    special = list(one.special)
    for _ in range(number):
        text = "".join(
            dice.choice(special) if dice.random() < 0.4 else dice.choice(FRAGMENTS)
            for _ in range(dice.randint(1, 25))
        )
        assert sum(map(one.count, counter.cut(text))) == one.count(text), repr(text)


@pytest.mark.parametrize("model", MODELS)
def test_real_tokenizers_add_up(model: str, tokenizer: Callable[[str], Tokenizer]) -> None:
    adds_up(tokenizer(model), random.Random(model), 200)


@pytest.mark.parametrize(("where", "file"), [(where, file) for where in FILES for file in FILES[where]])
def test_other_kinds_add_up(where: str, file: str) -> None:
    adds_up(load(package(where) / file), random.Random(file), 200)


# ---- tokenizers that treat the edges of a text in every way there is ----

WORDS = "the quick brown fox jumps over the lazy dog 0123456789 word two spaces leading lines Title ALL CAPS"
NORMALIZERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "nfc": normalizers.NFC,
    "nfkc and lower": lambda: normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "llama 2": lambda: normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    ),
    "strip": lambda: normalizers.Strip(),
}
SPLITTERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes after a space": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "metaspace first": lambda: pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    "metaspace always": lambda: pre_tokenizers.Metaspace(prepend_scheme="always"),
    "none": lambda: None,
}
ADDED = {
    "plain": [AddedToken("<|a|>", normalized=False, special=True), AddedToken("<|ab|>", normalized=False)],
    "rstrip": [
        AddedToken("<|a|>", normalized=False, rstrip=True, special=True),
        AddedToken("  ", normalized=False),
    ],
    "lstrip": [
        AddedToken("<|a|>", normalized=False, special=True),
        AddedToken("<mask>", normalized=False, lstrip=True),
    ],
    "single word": [
        AddedToken("<|a|>", normalized=False, special=True),
        AddedToken("word", normalized=False, single_word=True),
    ],
    "normalized": [AddedToken("<|A|>", normalized=True), AddedToken("</s>", normalized=False, special=True)],
    "overlapping": [
        AddedToken("<|a", normalized=True),
        AddedToken("a|>", normalized=False, special=True),
        AddedToken("|><|", normalized=False),
        AddedToken("</s>", normalized=False),
    ],
}


def build(normalizer: str, splitter: str, added: str) -> JsonTokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?", fuse_unk=True))
    made.normalizer = NORMALIZERS[normalizer]()
    made.pre_tokenizer = SPLITTERS[splitter]()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["?"], show_progress=False)
    made.train_from_iterator([WORDS, *_NASTY], trainer)
    made.add_tokens(ADDED[added])
    return JsonTokenizer(f"{normalizer}/{splitter}/{added}", made)


MADE = cached(lambda name: build(*name.split("/")))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize("added", ADDED)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_odd_tokenizers_add_up(normalizer: str, splitter: str, added: str, data: st.DataObject) -> None:
    one = MADE(f"{normalizer}/{splitter}/{added}")
    counter = SegmentCounter(one, Memo(10))
    text = data.draw(texts(tuple(token.content for token in ADDED[added])))
    assert sum(map(one.count, counter.cut(text))) == one.count(text)


def test_tokens_that_depend_on_their_neighbours_do_not_divide() -> None:
    def special(normalizer: str, added: str) -> set[str]:
        return set(build(normalizer, "bytes", added).special) - {"?"}

    assert special("none", "plain") == {"<|a|>", "<|ab|>"}
    assert special("none", "lstrip") == {"<|a|>"}
    assert special("none", "single word") == {"<|a|>"}
    assert special("none", "rstrip") == {"<|a|>"}
    assert special("none", "normalized") == {"<|A|>", "</s>"}
    assert special("nfc", "normalized") == {"</s>"}
    assert "<|a" not in special("none", "overlapping")


# ---- the self-test ----


class Crooked:
    """A tokenizer that is wrong about its special tokens: spaces before one are lost."""

    name = "crooked"
    special = ("<s>", "<t>")

    def __init__(self, word: str = "") -> None:
        self._word = word
        self.counted: list[str] = []

    def count(self, text: str) -> int:
        self.counted.append(text)
        if self._word:
            return len(text) - text.count(self._word)
        return len(text.replace(" <s>", "<s>"))


def test_a_token_found_to_depend_on_its_neighbours_divides_nothing() -> None:
    assert dividers(Crooked("d<t>")) == ("<s>",)


def test_where_no_piece_stands_alone_the_whole_is_counted() -> None:
    one = Crooked("\n<")
    counter = SegmentCounter(one, Memo(10))
    assert counter.whole
    assert counter.cut("a\n<s>b") == ["a\n<s>b"]
    assert counter.count("a\n<s>b") == 5


# ---- counting ----


class Characters:
    """A token for each character."""

    name = "characters"
    special = ("\x00",)

    def count(self, text: str) -> int:
        return len(text)


def test_pieces_are_remembered() -> None:
    counter = SegmentCounter(Characters(), Memo(10))
    assert counter.known("abc") is None
    assert counter.count("abc") == 3
    assert counter.known("abc") == 3
    assert counter.count("abc") == 3
    assert counter.encoded_tokens == 3


@given(st.lists(st.text("ab", max_size=3000), max_size=6), st.integers(-5, 4000))
def test_a_count_up_to_a_limit_stops_soon_after_it(pieces: list[str], limit: int) -> None:
    counter = SegmentCounter(Characters(), Memo(100))
    found = counter.count_upto(pieces, limit)
    total = sum(map(len, pieces))
    assert found.complete == (total <= limit)
    if found.complete:
        assert found.tokens == total
        assert found.encoded <= 2 * max(0, limit) + 64
    else:
        assert limit < found.tokens <= total
        assert found.encoded <= max(0, limit) * 2.2 + 2 * 64


def test_memos_are_apart_for_tokenizers_that_count_apart(tmp_path: Path) -> None:
    memo = Memo(10)
    SegmentCounter(Characters(), memo).count("abc")
    assert SegmentCounter(Crooked(), memo).known("abc") is None
