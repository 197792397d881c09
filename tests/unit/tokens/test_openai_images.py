"""The size of an image is read from its header, whatever the format, and nothing else is trusted."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.openai_families import Patches, Tiles
from proxy.tokens.openai_images import data_url_size, image_size, image_tokens


def jpeg(width: int, height: int, before: int = 0) -> bytes:
    segments = b"\xff\xe1" + struct.pack(">H", before + 2) + b"\0" * before if before else b""
    return b"\xff\xd8" + segments + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" * 12


def riff(kind: bytes, data: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + struct.pack("<I", len(data)) + data


IMAGES = {
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 300, 200),
    "gif": b"GIF89a" + struct.pack("<HH", 300, 200),
    "jpeg": jpeg(300, 200),
    "jpeg with a profile": jpeg(300, 200, before=60_000),
    "webp lossy": riff(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 300, 200)),
    "webp lossless": riff(b"VP8L", b"\x2f" + (299 | 199 << 14).to_bytes(4, "little")),
    "webp extended": riff(b"VP8X", b"\0\0\0\0" + (299).to_bytes(3, "little") + (199).to_bytes(3, "little")),
}


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES)
def test_a_size_is_read_from_the_header(data: bytes) -> None:
    assert image_size(data + b"\0" * 16) == (300, 200)
    url = "data:image/any;base64," + base64.b64encode(data).decode().rstrip("=")
    assert data_url_size(url) == (300, 200)


@pytest.mark.parametrize(
    "url", ["", "https://example.com/a.png", "data:image/png;base64,", "data:,x", "data:image/png;base64,é"]
)
def test_other_urls_have_no_size(url: str) -> None:
    assert data_url_size(url) is None


@given(st.binary(max_size=64), st.sampled_from([b"", *IMAGES.values()]), st.integers(0, 40))
def test_no_bytes_raise(noise: bytes, image: bytes, keep: int) -> None:
    size = image_size(image[:keep] + noise)
    assert size is None or min(size) > 0


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 31))
def test_any_size_has_a_bounded_price(width: int, height: int) -> None:
    assert 1 <= image_tokens(width, height, None, Patches(1.0)) <= 1537
    assert 255 <= image_tokens(width, height, None, Tiles(85, 170)) <= 85 + 170 * 8


def test_a_small_image_is_not_enlarged() -> None:
    assert image_tokens(512, 512, "high", Tiles(85, 170)) == 255
    assert image_tokens(513, 512, "high", Tiles(85, 170)) == 425
