"""Remembered token counts, so that a conversation's history is not tokenized again every turn.

Texts are known by a keyed digest, never by themselves: no message text stays in memory, and nobody outside
can build two texts that share an entry. Python's own str hash is such a digest: SipHash-1-3 with a secret
drawn when the process starts (PEP 456), over the string's memory, without encoding it. Together with the
length it makes the key. Where the interpreter runs with a fixed or no secret, BLAKE2b with our own key
takes its place: about twenty times slower for short text.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Hashable

Digest = Callable[[str], Hashable]


def blake(key: bytes) -> Digest:
    """A digest of text by BLAKE2b under that key."""

    def digest(text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=key, digest_size=16).digest()

    return digest


def hash_is_secret() -> bool:
    """Whether this interpreter's str hash is a 64-bit SipHash under a secret of this process.

    PYTHONHASHSEED is the interpreter's own switch and says nothing about the proxy, so it is read here and
    not in the config; `sys.flags.hash_randomization` is 1 for a fixed seed too.
    """
    return (
        sys.flags.hash_randomization != 0
        and os.environ.get("PYTHONHASHSEED", "random") in ("", "random")
        and sys.hash_info.algorithm.startswith("siphash")
        and sys.hash_info.hash_bits >= 64
    )


def process_digest() -> Digest:
    """The fastest keyed digest that this process has."""
    return hash if hash_is_secret() else blake(os.urandom(32))


class Memo:
    """Text to token count, for any number of encodings, at most `entries` of them in all.

    Two generations: a hit in the old one moves to the young one, and when the young one is half of all
    entries the old one is dropped. That keeps what is used, as an LRU list would, at the price of one dict
    look-up. Dict operations are atomic, so threads may share a memo: at worst a count is made twice.
    """

    __slots__ = ("_digest", "_half", "_old", "_young")

    def __init__(self, entries: int, digest: Digest | None = None) -> None:
        if entries < 2:
            raise ValueError(f"a memo needs room for two entries or more, not {entries}")
        self._half = entries // 2
        self._digest = digest or process_digest()
        self._young: dict[tuple[Hashable, int, str], int] = {}
        self._old: dict[tuple[Hashable, int, str], int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, encoding: str, text: str) -> int | None:
        """The remembered count of a text, or None."""
        key = (self._digest(text), len(text), encoding)
        tokens = self._young.get(key)
        if tokens is None:
            tokens = self._old.pop(key, None)
            if tokens is not None:
                self._keep(key, tokens)
        return tokens

    def put(self, encoding: str, text: str, tokens: int) -> None:
        """Remember the count of a text."""
        self._keep((self._digest(text), len(text), encoding), tokens)

    def _keep(self, key: tuple[Hashable, int, str], tokens: int) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = tokens
