"""Tokenizers that are byte ranks and a splitting pattern: tiktoken's kind of file, and Mistral's tekken.json."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiktoken

from proxy.tokens.encodings import O200K_PATTERN
from proxy.tokens.memo import Memo
from proxy.tokens.segments import Cutter
from proxy.tokens.text import TextCounter
from proxy.tokens.tokenizer_files import TokenizerFileError, added_by, name_of, token_text

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"


@dataclass(frozen=True, slots=True)
class _Family:
    """What a rank file does not say: its pattern, and the special tokens where no config names them."""

    pattern: str
    special: tuple[str, ...]


def _reserved(names: str, total: int) -> tuple[str, ...]:
    """Llama 3's way: named tokens, each "*" standing for the next reserved one, then the rest reserved."""
    out: list[str] = []
    number = 0
    for name in [*names.split(), *["*"] * total][:total]:
        out.append(f"<|reserved_special_token_{number}|>" if name == "*" else f"<|{name}|>")
        number += name == "*"
    return tuple(out)


# By the number of ranks, which tells these apart. Llama 3: llama-models, models/llama3/tokenizer.py. Llama 4:
# models/llama4/tokenizer.py, whose special tokens a tokenizer_config.json must name. Qwen 1: Qwen's
# tokenization_qwen.py.
_FAMILIES = {
    128_000: _Family(
        _LLAMA3,
        _reserved(
            "begin_of_text end_of_text * * finetune_right_pad_id step_id start_header_id end_header_id"
            " eom_id eot_id python_tag image",
            256,
        ),
    ),
    200_000: _Family(O200K_PATTERN, ()),
    151_643: _Family(
        _QWEN,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))),
    ),
}


class RankTokenizer:
    """Implements `Tokenizer`: special tokens are found first, and tiktoken encodes what lies between."""

    def __init__(
        self, name: str, encoding: tiktoken.Encoding, special: Sequence[str], added: int | None
    ) -> None:
        self.name = name
        self.special = special
        self.added = added
        self._cutter = Cutter(special)
        # Its memo is for nothing: whoever counts prompts remembers whole segments.
        self._text = TextCounter(encoding, Memo(2))

    def count(self, text: str) -> int:
        count = self._text.count
        return sum(
            bool(token) + (count(rest) if rest else 0) for token, rest in self._cutter.tokens_and_rests(text)
        )


def load_ranks(file: Path, data: bytes, config: Mapping[str, Any]) -> RankTokenizer:
    """From a file of base64 tokens and ranks. The config beside it may name the special tokens."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerFileError(file, f"line {number} is not a base64 token and its rank") from None
    family = _FAMILIES.get(len(ranks))
    if family is None:
        known = ", ".join(map(str, _FAMILIES))
        raise TokenizerFileError(
            file,
            f"a rank file of {len(ranks)} tokens, and it does not say how it splits text (known: {known});"
            " use the model's tokenizer.json",
        )
    special = _configured(config) or family.special
    if not special:
        raise TokenizerFileError(
            file, "its special tokens are not known; put the model's tokenizer_config.json beside it"
        )
    encoding = _encoding(file, family.pattern, ranks)
    name = name_of("ranks", data, family.pattern.encode(), json.dumps(special).encode())
    return RankTokenizer(name, encoding, special, added_by(config))


def load_tekken(file: Path, data: bytes, content: Mapping[str, Any]) -> RankTokenizer:
    """From the parsed content of a tekken.json (mistral-common, tokens/tokenizers/tekken.py)."""
    try:
        config = content["config"]
        specials = int(config["default_num_special_tokens"])
        kept = content["vocab"][: int(config["default_vocab_size"]) - specials]
        ranks = {base64.b64decode(item["token_bytes"]): item["rank"] for item in kept}
        pattern = config["pattern"]
        named = [item["token_str"] for item in content.get("special_tokens") or _TEKKEN_SPECIAL]
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerFileError(file, f"not a tekken.json that we know: {error!r}") from None
    special = [*named, *(f"<SPECIAL_{number}>" for number in range(len(named), specials))]
    # Whoever reads these files puts a BOS first (mistral-common, Tekkenizer.encode; llama.cpp).
    return RankTokenizer(name_of("tekken", data), _encoding(file, pattern, ranks), special, added=1)


# Of files older than their `special_tokens` (mistral-common, Tekkenizer.DEPRECATED_SPECIAL_TOKENS).
_TEKKEN_SPECIAL = [
    {"token_str": token}
    for token in [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_CONTENT]",
    ]
]


def _configured(config: Mapping[str, Any]) -> tuple[str, ...]:
    decoder = config.get("added_tokens_decoder")
    values = decoder.values() if isinstance(decoder, dict) else ()
    return tuple(text for text in map(token_text, values) if text is not None)


def _encoding(file: Path, pattern: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding(file.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except Exception as error:
        raise TokenizerFileError(file, f"tiktoken does not take it: {error}") from None
