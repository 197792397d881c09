"""What an image costs: its size, read from the header of its data URL, and the rules of tokens.md 1.6.

Images behind http(s) URLs are never fetched: their size stays unknown.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from math import ceil, floor, sqrt

from proxy.tokens.openai_families import Patches, Tiles

# How much of an image is decoded to find its size: cameras put a preview and a profile before it.
_HEADER_CHARACTERS = 4096
_LONGEST_HEADER_CHARACTERS = 1 << 20

# Tiles: fit into this square, then shrink (never enlarge) the short side to this, then tiles of this side.
_SQUARE, _SHORT_SIDE, _TILE = 2048, 768, 512
# Patches: squares of this side, at most so many.
_PATCH, _MOST_PATCHES = 32, 1536
# Chat Completions bills one token beside the patches; Responses does not.
_PATCH_EXTRA = 1

# An image of unknown size is taken for this: the smallest that fills the short side.
UNKNOWN_SIZE = (1024, 768)


def data_url_size(url: str) -> tuple[int, int] | None:
    """Width and height of the image in a base64 data URL; None for other URLs and unreadable images."""
    head, comma, _ = url[:256].partition(",")
    if not comma or not head.startswith("data:") or not head.endswith("base64"):
        return None
    start = len(head) + 1
    for characters in (_HEADER_CHARACTERS, _LONGEST_HEADER_CHARACTERS):
        try:
            data = b64decode(url[start : start + characters] + "==")
        except (binascii.Error, ValueError):
            return None
        size = image_size(data)
        if size is not None:
            return size
        if len(url) <= start + characters:
            break
    return None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the first bytes of a PNG, GIF, WebP or JPEG file."""
    try:
        size = _png(data) or _gif(data) or _webp(data) or _jpeg(data)
    except (struct.error, IndexError):
        return None
    return size if size and size[0] > 0 and size[1] > 0 else None


def _png(data: bytes) -> tuple[int, int] | None:
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> tuple[int, int] | None:
    if data[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _webp(data: bytes) -> tuple[int, int] | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":  # two 24-bit numbers, less one
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":  # two 14-bit numbers, less one, after the signature byte
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":  # two 14-bit numbers with two bits of scale, after the start code
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    if data[:2] != b"\xff\xd8":
        return None
    position = 2
    while True:
        while data[position] != 0xFF:
            position += 1
        while data[position] == 0xFF:
            position += 1
        marker = data[position]
        position += 1
        # Start of frame, any process; C4, C8 and CC in that range are tables and extensions.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, position + 3)
            return width, height
        if not (marker == 0x01 or 0xD0 <= marker <= 0xD9):  # those have no length
            position += max(2, struct.unpack_from(">H", data, position)[0])


def image_tokens(width: int, height: int, detail: object, rule: Tiles | Patches) -> int:
    """The tokens of one image of that size. `detail` "low" is the base price where tiles are billed."""
    if isinstance(rule, Patches):
        # In floating point on purpose: 300 * 1.62 is a hair over 486, and 487 is what is billed.
        return ceil(_patches(width, height) * rule.multiplier) + _PATCH_EXTRA
    if detail == "low":
        return rule.base
    scale = min(1.0, _SQUARE / max(width, height))
    scale = min(scale, _SHORT_SIDE / min(width, height))
    across, down = _tiles(width * scale), _tiles(height * scale)
    return rule.base + rule.tile * across * down


def _tiles(side: float) -> int:
    # Whole pixels first: 768.0000001 is not a second tile.
    return max(1, ceil(floor(side + 1e-6) / _TILE))


def _patches(width: int, height: int) -> int:
    patches = ceil(width / _PATCH) * ceil(height / _PATCH)
    if patches <= _MOST_PATCHES:
        return patches
    ratio = sqrt(_PATCH**2 * _MOST_PATCHES / (width * height))
    across, down = width * ratio / _PATCH, height * ratio / _PATCH
    # Shrink on until a whole number of patches fits along both sides.
    ratio *= min(max(1, floor(across)) / across, max(1, floor(down)) / down)
    return min(_MOST_PATCHES, ceil(width * ratio / _PATCH - 1e-9) * ceil(height * ratio / _PATCH - 1e-9))
