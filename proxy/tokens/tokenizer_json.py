"""Tokenizers of Hugging Face's `tokenizers`, from a tokenizer.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from proxy.tokens.tokenizer_files import (
    TokenizerFileError,
    name_of,
    replace_surrogates,
    token_text,
)

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# What a normalizer might change: composition, case, spaces, widths, quotes, control characters.
_PROBE = (
    " aA\u00e9e\u0301\u212b \u2126 \uff21\ufb01\u3000\u00a0 \t\r\n  x\u0338"
    "\u00ad\u200d\u2019'\u0000\u4e00\u1e9b\u0323 \u2581 "
)


class JsonTokenizer:
    """Implements `Tokenizer`.

    `encode_batch_fast` lets go of the interpreter lock, which `encode` holds (shared/facts/tokens.md, section
    3), and makes no offsets. With more than one text it would start threads of its own at normal priority, and
    warn after a fork; counts come one text at a time from our own threads, so that is switched off.
    """

    def __init__(self, name: str, tokenizer: tokenizers.Tokenizer) -> None:
        self.name = name
        self.special: Sequence[str] = _dividers(tokenizer)
        # What the config says of it does not count beside a tokenizer.json (transformers 5.24,
        # tokenization_utils_base.py, `_from_pretrained`).
        self.added: int | None = tokenizer.num_special_tokens_to_add(is_pair=False)
        self._encode = tokenizer.encode_batch_fast
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def count(self, text: str) -> int:
        try:
            [encoding] = self._encode([text], add_special_tokens=False)
        except TypeError:  # its answer to surrogates
            [encoding] = self._encode([replace_surrogates(text)], add_special_tokens=False)
        return len(encoding)


def load_json(file: Path, data: bytes, config: Mapping[str, Any]) -> JsonTokenizer:
    """From the bytes of a tokenizer.json and the tokenizer_config.json beside it, read as transformers does."""
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerFileError(file, f"tokenizers does not take it: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    more = _missing(tokenizer, config)
    if more:
        tokenizer.add_tokens(more)
    added = json.dumps([str(tokenizer.encode_special_tokens), *map(repr, more)]).encode()
    return JsonTokenizer(name_of("json", data, added), tokenizer)


def _missing(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any]) -> list[AddedToken]:
    """Tokens that only the config knows, or knows otherwise (transformers 5.24, TokenizersBackend.__init__)."""
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    out = []
    decoder = config.get("added_tokens_decoder")
    for _, given in sorted(decoder.items(), key=_number) if isinstance(decoder, dict) else ():
        content = token_text(given)
        if content is None or not isinstance(given, dict):
            continue
        token = AddedToken(content, **{flag: bool(given.get(flag, False)) for flag in _FLAGS})
        if repr(token) not in known:
            out.append(token)
            names.add(content)
    for value in _specials(config):
        content = token_text(value)
        if content is not None and content not in names:
            flags = value if isinstance(value, dict) else {}
            given_flags = {flag: bool(flags[flag]) for flag in _FLAGS[:4] if flag in flags}
            out.append(AddedToken(content, special=True, **given_flags))
            names.add(content)
    return out


def _number(item: tuple[str, Any]) -> int:
    return int(item[0]) if item[0].isdecimal() else -1


def _specials(config: Mapping[str, Any]) -> list[Any]:
    values = [config.get(key) for key in _NAMED]
    for key in _LISTS:
        given = config.get(key)
        if isinstance(given, list):
            values += given
        elif isinstance(given, dict):
            values += given.values()
    return values


def _dividers(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """The added tokens before which any text may be cut: each half tokenizes as it does in the whole.

    Added tokens are found by two searches for the leftmost, longest match: first those that are not
    `normalized`, in the text as it is; then, in what lies between, the others, in the normalized text. What lies
    between two tokens is normalized, split and merged on its own (tokenizers, added_vocabulary.rs). So a token
    divides if it is found whatever stands around it, which leaves out those that swallow spaces before them
    (`lstrip`) or look at their neighbours (`single_word`), those sought in a text that a normalizer changed,
    those that begin with a space, which a token before might swallow, and whatever can overlap one left out.
    A piece keeps the token that it begins with, so what depends on standing first depends on that alone.
    """
    normalizer = tokenizer.normalizer
    unchanged = normalizer is None or normalizer.normalize_str(_PROBE) == _PROBE
    searches: tuple[dict[str, bool], dict[str, bool]] = ({}, {})  # content → divides, as far as its flags say
    for token in tokenizer.get_added_tokens_decoder().values():
        if not token.content or (token.special and tokenizer.encode_special_tokens):
            continue
        divides = not (token.lstrip or token.single_word or token.content[0].isspace())
        search = searches[token.normalized]
        search[token.content] = divides and (unchanged or not token.normalized)
    first = _undisturbed(searches[0], ())
    second = _undisturbed(searches[1], searches[0])
    return sorted(first | second)


def _undisturbed(search: Mapping[str, bool], earlier: Sequence[str] | Mapping[str, bool]) -> set[str]:
    """Those that divide and cannot overlap one that does not, nor one of an earlier search."""
    good = {token for token, divides in search.items() if divides}
    bad = [*earlier, *(token for token, divides in search.items() if not divides)]
    while bad:
        against = bad.pop()
        hit = {token for token in good if _overlap(token, against)}
        good -= hit
        bad += hit
    return good


def _overlap(one: str, other: str) -> bool:
    """Whether there is a text in which both stand and share a character."""
    if one in other or other in one:
        return True
    return any(
        one.endswith(other[:size]) or other.endswith(one[:size])
        for size in range(1, min(len(one), len(other)))
    )
