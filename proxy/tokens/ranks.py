"""The merge ranks of OpenAI's encodings, shipped with us so that start-up needs no network.

A rank file is `data/NAME.xz`: for each rank in order, one length byte and the token's bytes, the whole
compressed with xz. p50k_base has no token at rank 50256 (its `<|endoftext|>` lives there): such a gap is
an entry of length zero. No token of any encoding is longer than 128 bytes, so one length byte is enough.

Packing a new file is maintainers' work: `python -m proxy.tokens.ranks o200k_base o200k_base.tiktoken`.
"""

from __future__ import annotations

import hashlib
import lzma
import sys
from base64 import b64decode
from binascii import b2a_base64
from importlib import resources

# sha256 of each encoding's .tiktoken text, from tiktoken 0.14.0's tiktoken_ext/openai_public.py.
TIKTOKEN_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "p50k_base": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
}


class RankError(RuntimeError):
    """A rank file is missing, damaged, or not the one that the encoding was published with."""


def pack(tiktoken_text: bytes) -> bytes:
    """Pack a .tiktoken text (lines of "base64-token rank", ranks rising) into our form."""
    entries = bytearray()
    following = 0
    for line in tiktoken_text.splitlines():
        if not line:
            continue
        encoded, number = line.split()
        token, rank = b64decode(encoded), int(number)
        if rank < following or not 0 < len(token) < 256:
            raise RankError(f"cannot pack rank {rank}: ranks must rise and tokens have 1 to 255 bytes")
        entries += b"\0" * (rank - following)
        entries.append(len(token))
        entries += token
        following = rank + 1
    # One stream with a dictionary larger than any vocabulary; the CRC is left out because `load` compares
    # a sha256.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
    return lzma.compress(bytes(entries), check=lzma.CHECK_NONE, filters=filters)


def unpack(entries: bytes) -> dict[bytes, int]:
    """The ranks in decompressed entries."""
    ranks: dict[bytes, int] = {}
    position, rank, end = 0, 0, len(entries)
    while position < end:
        start = position + 1
        position = start + entries[position]
        ranks[entries[start:position]] = rank
        rank += 1
    ranks.pop(b"", None)  # gaps
    return ranks


def tiktoken_text(ranks: dict[bytes, int]) -> bytes:
    """The .tiktoken text that the ranks came from, byte for byte."""
    encode = b2a_base64
    return b"".join([b"%b %d\n" % (encode(token, newline=False), rank) for token, rank in ranks.items()])


def load(name: str) -> dict[bytes, int]:
    """The ranks of one encoding, verified against the hash that tiktoken itself demands."""
    expected = TIKTOKEN_SHA256.get(name)
    if expected is None:
        raise RankError(f"no rank file for {name!r}; there are {', '.join(TIKTOKEN_SHA256)}")
    try:
        packed = resources.files(__package__).joinpath("data", f"{name}.xz").read_bytes()
    except OSError as error:
        raise RankError(f"the rank file of {name} is missing from this installation: {error}") from error
    return verified(name, packed, expected)


def verified(name: str, packed: bytes, expected: str) -> dict[bytes, int]:
    """The ranks in a packed file, or a RankError when they are not those with the `expected` hash."""
    try:
        ranks = unpack(lzma.decompress(packed))
    except (lzma.LZMAError, IndexError) as error:
        raise RankError(f"the rank file of {name} is damaged: {error}") from error
    found = hashlib.sha256(tiktoken_text(ranks)).hexdigest()
    if found != expected:
        raise RankError(f"the rank file of {name} is not tiktoken's: sha256 {found}, expected {expected}")
    return ranks


def main(arguments: list[str]) -> int:
    """Pack one .tiktoken file into this package's data folder."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m proxy.tokens.ranks NAME FILE.tiktoken\n")
        return 2
    name, source = arguments
    expected = TIKTOKEN_SHA256.get(name)
    if expected is None:
        sys.stderr.write(f"unknown encoding {name!r}; known: {', '.join(TIKTOKEN_SHA256)}\n")
        return 2
    with open(source, "rb") as file:
        packed = pack(file.read())
    verified(name, packed, expected)
    target = resources.files(__package__ or "proxy.tokens").joinpath("data", f"{name}.xz")
    with resources.as_file(target) as path:
        path.write_bytes(packed)
    sys.stderr.write(f"{name}: {len(packed)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
