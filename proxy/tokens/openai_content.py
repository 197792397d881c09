"""The content of a chat message: its text, the price of its images and sounds, and what is unclear in it."""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.tokens.openai_cost import Bill
from proxy.tokens.openai_families import Family
from proxy.tokens.openai_images import UNKNOWN_SIZE, data_url_size, image_tokens
from proxy.tokens.openai_json import dumped

# A clip of sound: ten tokens a second, rounded down, and four around it (tokens.md 1.7).
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_CLIP_TOKENS = 4
_WAV_HEADER_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class Content:
    """Text parts joined without a separator, as they are billed, and the tokens of the other parts."""

    text: str
    tokens: int
    unsure: tuple[str, ...]


def read_content(content: Any, family: Family) -> Content:
    """Read a message's content, whatever it is."""
    if isinstance(content, str):
        return Content(content, 0, ())
    if content is None:
        return Content("", 0, ())
    bill = Bill()
    if isinstance(content, list):
        for part in content:
            _part(part, family, bill)
    else:
        bill.doubt("content that is neither text nor parts")
        bill.text(dumped(content))
    return Content("".join(bill.texts), bill.tokens, tuple(bill.reasons))


def _part(part: Any, family: Family, bill: Bill) -> None:
    if not isinstance(part, Mapping):
        bill.doubt("a content part that is not an object")
        bill.text(part if isinstance(part, str) else "")
        return
    kind = part.get("type")
    text = part.get("text")
    if kind == "text" and isinstance(text, str):
        bill.text(text)
    elif kind == "image_url":
        _image(part.get("image_url"), family, bill)
    elif kind == "input_audio":
        _audio(part.get("input_audio"), bill)
    elif kind == "file":
        bill.doubt("a file")  # its extracted text and page images are made by OpenAI
    else:
        bill.doubt("a content part of unknown type")
        refusal = part.get("refusal")
        bill.text(text if isinstance(text, str) else refusal if isinstance(refusal, str) else "")


def _image(image: Any, family: Family, bill: Bill) -> None:
    url = image.get("url") if isinstance(image, Mapping) else image
    detail = image.get("detail") if isinstance(image, Mapping) else None
    size = data_url_size(url) if isinstance(url, str) else None
    if size is None:
        remote = isinstance(url, str) and not url.startswith("data:")
        bill.doubt("an image that is not in the request" if remote else "an unreadable image")
        size = UNKNOWN_SIZE
    bill.add(image_tokens(*size, detail, family.images))


def _audio(audio: Any, bill: Bill) -> None:
    bill.add(AUDIO_CLIP_TOKENS)
    data = audio.get("data") if isinstance(audio, Mapping) else None
    seconds = wav_seconds(data) if isinstance(data, str) else None
    if seconds is None:
        bill.doubt("sound of unknown length")
    else:
        bill.add(int(AUDIO_TOKENS_PER_SECOND * seconds))
        bill.doubt("sound")  # few recordings to learn from


def wav_seconds(data: str) -> float | None:
    """How long a base64 WAV file plays, from its header; None for anything else."""
    try:
        head = b64decode(data[:_WAV_HEADER_CHARACTERS] + "==")
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            return None
        position, bytes_per_second = 12, 0
        while position + 8 <= len(head):
            kind, size = struct.unpack_from("<4sI", head, position)
            if kind == b"fmt ":
                (bytes_per_second,) = struct.unpack_from("<I", head, position + 16)
            elif kind == b"data" and bytes_per_second:
                # A streamed file gives a size of all ones; what is there counts.
                there = len(data) * 3 // 4 - position - 8
                return float(max(0, min(size, there)) / bytes_per_second)
            position += 8 + size + size % 2
    except (ValueError, struct.error):
        return None
    return None
