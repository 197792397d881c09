"""Tokenizers of sentencepiece, from a .model file: Llama 2, Mistral v1 to v3 and their kin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from proxy.tokens.segments import Cutter
from proxy.tokens.tokenizer_files import (
    TokenizerFileError,
    added_by,
    name_of,
    replace_surrogates,
    token_text,
)

# A protocol buffer's message that comes in two parts is merged from both: this says `add_dummy_prefix` (field 3)
# of `normalizer_spec` (field 3) is false (sentencepiece_model.proto).
_NO_DUMMY_SPACE = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer:
    """Implements `Tokenizer`.

    sentencepiece itself never reads control tokens (`<s>`) in a text, but servers do, before it: what lies
    between two of them is encoded on its own. Whether a piece then begins with the dummy space is the server's
    business. llama.cpp (llama-vocab.cpp, `is_prev_special`) and `legacy` tokenizers of transformers add it to
    each piece. With `"legacy": false` it is transformers' Metaspace, prepended at the very beginning only, and
    not to a text that begins with a space.
    """

    def __init__(
        self,
        name: str,
        models: tuple[sentencepiece.SentencePieceProcessor, sentencepiece.SentencePieceProcessor],
        special: Sequence[str],
        *,
        legacy: bool,
        added: int | None,
    ) -> None:
        """`models`: one that adds the dummy space, as the file says, and one that does not."""
        self.name = name
        self.special = special
        self.added = added
        self._spaced, self._plain = models
        self._legacy = legacy
        self._cutter = Cutter(special)

    def count(self, text: str) -> int:
        total = 0
        first = True
        for token, rest in self._cutter.tokens_and_rests(text):
            spaced = self._legacy or (first and not token and not rest.startswith((" ", "\u2581")))
            total += bool(token) + self._count(rest, self._spaced if spaced else self._plain)
            first = False
        return total

    def _count(self, text: str, model: sentencepiece.SentencePieceProcessor) -> int:
        if not text:
            return 0
        try:
            return len(model.encode(text))
        except (
            RuntimeError,
            UnicodeEncodeError,
        ):  # half a surrogate pair; which of the two depends on its version
            return len(model.encode(replace_surrogates(text)))


def load_sentencepiece(file: Path, data: bytes, config: Mapping[str, Any]) -> SentencePieceTokenizer:
    """From the bytes of a model and the tokenizer_config.json beside it, which may name more special tokens."""
    model, plain = sentencepiece.SentencePieceProcessor(), sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(data)
        plain.LoadFromSerializedProto(data + _NO_DUMMY_SPACE)
    except (RuntimeError, OSError) as error:
        raise TokenizerFileError(file, f"sentencepiece does not take it: {error}") from None
    special = {
        model.id_to_piece(number): None
        for number in range(model.get_piece_size())
        if model.is_control(number) or model.is_unknown(number)
    }
    decoder = config.get("added_tokens_decoder")
    for given in decoder.values() if isinstance(decoder, dict) else ():
        content = token_text(given)
        if content is not None:
            special[content] = None
    legacy = config.get("legacy") is not False
    name = name_of("sentencepiece", data, json.dumps([list(special), legacy]).encode())
    return SentencePieceTokenizer(name, (model, plain), list(special), legacy=legacy, added=added_by(config))
