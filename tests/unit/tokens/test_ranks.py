"""The shipped rank files are tiktoken's own, and damage does not go unseen."""

import base64
import hashlib
import lzma
import subprocess
import sys
from importlib import resources

import pytest

from proxy.tokens import ranks

SIZES = {"o200k_base": 199_998, "cl100k_base": 100_256, "p50k_base": 50_280, "r50k_base": 50_256}


@pytest.mark.parametrize("name", SIZES)
def test_a_shipped_file_is_the_published_one(name: str) -> None:
    loaded = ranks.load(name)
    text = b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in loaded.items())
    assert hashlib.sha256(text).hexdigest() == ranks.TIKTOKEN_SHA256[name]
    assert len(loaded) == SIZES[name]


def test_packing_and_loading_keeps_ranks_and_gaps() -> None:
    text = b"".join(
        b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in ((b"a", 0), (b"\xff", 1), (b"bc", 4))
    )
    packed = ranks.pack(text)
    loaded = ranks.verified("small", packed, hashlib.sha256(text).hexdigest())
    assert loaded == {b"a": 0, b"\xff": 1, b"bc": 4}
    assert ranks.tiktoken_text(loaded) == text


def test_p50k_has_its_gap() -> None:
    assert 50_256 not in ranks.load("p50k_base").values()


@pytest.mark.parametrize("text", [b"YQ== 1\nYg== 0\n", b" 0\n", base64.b64encode(b"x" * 256) + b" 0\n"])
def test_what_cannot_be_packed_is_refused(text: bytes) -> None:
    with pytest.raises((ranks.RankError, ValueError)):
        ranks.pack(text)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ranks.RankError, match="o200k_base"):
        ranks.load("nothing")


def test_a_changed_file_is_refused() -> None:
    packed = resources.files("proxy.tokens").joinpath("data", "r50k_base.xz").read_bytes()
    entries = bytearray(lzma.decompress(packed))
    entries[-1] ^= 1
    with pytest.raises(ranks.RankError, match="not tiktoken's"):
        ranks.verified("r50k_base", lzma.compress(bytes(entries)), ranks.TIKTOKEN_SHA256["r50k_base"])


@pytest.mark.parametrize("keep", [0, 10, 100_000])
def test_a_truncated_file_is_refused(keep: int) -> None:
    packed = resources.files("proxy.tokens").joinpath("data", "r50k_base.xz").read_bytes()
    with pytest.raises(ranks.RankError, match="damaged"):
        ranks.verified("r50k_base", packed[:keep], ranks.TIKTOKEN_SHA256["r50k_base"])


def test_the_packing_command_refuses_unknown_names() -> None:
    command = [sys.executable, "-m", "proxy.tokens.ranks", "nothing", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "known: o200k_base" in done.stderr
