"""A request body as JSON: parsed once, and looked at again only where something must be replaced. Pure."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import orjson

from proxy.dialects import spans
from proxy.errors import InvalidJson, InvalidRequest, TooLarge, UnsupportedEncoding

MAX_NAME_CHARACTERS = 500
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")


def parse(raw: bytes) -> dict[str, Any]:
    """The body as a dict. Raises InvalidJson or InvalidRequest.

    orjson reads it; where it refuses, the standard library decides, since JavaScript clients send lone
    surrogates every day, and their upstreams take them. NaN and Infinity are not JSON (RFC 8259 section 6).
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as refused:
        value = _parse_leniently(raw, refused)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {type_name(value)}")
    return value


def _parse_leniently(raw: bytes, refused: orjson.JSONDecodeError) -> Any:
    if not raw.strip():
        raise InvalidJson("the body is empty: a JSON object is required") from None
    try:
        return json.loads(decode(raw), parse_constant=_no_constant)
    except RecursionError:
        raise InvalidJson("the body is nested too deep to be read") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno} (char {error.pos})"
        ) from None
    except ValueError as error:
        # Numbers of more digits than Python converts, or one of the constants below.
        raise InvalidJson(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def decode(raw: bytes) -> str:
    """The text of a body, such that encoding it again gives the same bytes. Raises InvalidJson."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def may_repeat(raw: bytes, fields: Mapping[str, Any], keys: Iterable[bytes]) -> bool:
    """Whether one of these keys may stand more than once in the body. False is certain, True is a hint.

    `keys` with their quotes; `fields` is the parsed body. Written again, a body without repeated keys has as
    many quotes as before, and one with them has fewer, unless escaped quotes make up for it. That costs a
    quarter of counting the keys, which is left for bodies where the quotes do not tell. A key can also be
    written with escapes (`"mod\\u0065l"`): no client does, but one that wants to slip past a limit could.
    """
    try:
        if raw.count(b'"') == orjson.dumps(fields).count(b'"') and not (b"\\" in raw and b"\\u0022" in raw):
            return False
    except TypeError:
        pass  # lone surrogates
    return any(raw.count(key) > 1 for key in keys) or (
        b"\\u00" in raw and _ESCAPED_ASCII.search(raw) is not None
    )


def members(text: str) -> tuple[spans.Member, ...]:
    """Where the keys and values of a parsed object stand. Raises InvalidRequest.

    The second scan does not go as deep as the parse.
    """
    try:
        return spans.scan_object(text)
    except ValueError as error:
        raise InvalidRequest(f"the body cannot be edited: {error}") from None


def refuse_repeated(raw: bytes, fields: Mapping[str, Any], keys: Collection[str]) -> None:
    """Two values for a key that we act on: the upstream might read the other one. Raises InvalidRequest."""
    if not may_repeat(raw, fields, [f'"{key}"'.encode() for key in keys]):
        return
    seen: set[str] = set()
    for member in members(decode(raw)):
        if member.key in seen and member.key in keys:
            raise InvalidRequest(f"the key {member.key!r} is given twice", param=member.key)
        seen.add(member.key)


def check_name(model: str) -> None:
    """A model's name goes into header fields, logs and metric labels. Raises InvalidRequest for one that cannot."""
    if len(model) > MAX_NAME_CHARACTERS or not model.isprintable():
        raise InvalidRequest(
            f"model must be printable characters, at most {MAX_NAME_CHARACTERS} of them", param="model"
        )


def unpack(raw: bytes, codings: Sequence[str], max_bytes: int) -> bytes:
    """Undo a request's Content-Encoding, within `max_bytes` (what a small body inflates to is bounded too)."""
    for coding in reversed(codings):
        if coding in ("gzip", "x-gzip"):
            raw = _inflate(raw, 16 + zlib.MAX_WBITS, coding, max_bytes)
        elif coding == "deflate":
            raw = _inflate(raw, zlib.MAX_WBITS, coding, max_bytes)
        elif coding != "identity":
            raise UnsupportedEncoding(
                f"content-encoding {coding!r} cannot be read: send identity, gzip or deflate",
                param="content-encoding",
            )
    return raw


def _inflate(raw: bytes, window_bits: int, coding: str, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    try:
        out = inflater.decompress(raw, max_bytes + 1)
    except zlib.error:
        raise InvalidRequest(f"the body is not valid {coding}", param="content-encoding") from None
    if len(out) > max_bytes:
        raise TooLarge(f"the body inflates to more than {max_bytes} bytes, the limit")
    if not inflater.eof:
        raise InvalidRequest(f"the {coding} body is cut off", param="content-encoding")
    if inflater.unused_data:
        # A second gzip member, say: the upstream might read it where we did not.
        raise InvalidRequest(f"something follows the end of the {coding} body", param="content-encoding")
    return out


def type_name(value: object) -> str:
    """How JSON calls it, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
