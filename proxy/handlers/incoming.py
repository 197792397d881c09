"""What a request says, read with care: its id, its peer, its body."""

from __future__ import annotations

import asyncio
import ipaddress
import posixpath
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from urllib.parse import unquote

from aiohttp import HttpVersion11, web

from backends.base import Headers
from backends.headers import connection_options
from proxy.config import Network
from proxy.errors import InvalidRequest, TooLarge
from proxy.exchange import network_holds

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_MAX_CODINGS = 10
_NO_PART_OF_A_PATH = re.compile(r"[\x00-\x20\x7f]|;[^/]*|[?#].*", re.DOTALL)
_DOT_SEGMENT = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$|%2f)|%2f(?:\.|%2e){1,2}|\\|%5c", re.IGNORECASE)


def request_id(headers: Headers) -> str:
    """The client's own id where it is one that a log line can hold, else a new one."""
    for name, value in headers:
        if name.lower() == "x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def raw_headers(request: web.BaseRequest) -> list[tuple[str, str]]:
    return list(request.headers.items())


def raw_path(request: web.BaseRequest) -> str:
    """Path and query as received. Raises InvalidRequest for one that upstream would be another."""
    path = request.raw_path
    if "#" in path:
        # RFC 9112 section 3.2: a request's target has no fragment. Who drops it would see another path.
        raise InvalidRequest("the path holds a '#'")
    if not path.startswith("/"):
        # Absolute form, as sent to a forward proxy (RFC 9112 section 3.2.2).
        path = "/" + path.partition("://")[2].partition("/")[2]
    if _DOT_SEGMENT.search(path.partition("?")[0]):
        raise InvalidRequest("the path holds a dot segment or a backslash")
    return path


def canonical(path: str) -> str:
    """What the most lenient of servers could take a path for. To compare with; never to send."""
    for _ in range(_MAX_CODINGS):
        plain = unquote(path)
        if plain == path:
            break
        path = plain
    path = posixpath.normpath(_NO_PART_OF_A_PATH.sub("", path.replace("\\", "/"))).casefold()
    while path.startswith("/v1/v1/"):
        # The base URL has a `/v1` of its own, or the upstream takes paths with and without one.
        path = path.removeprefix("/v1")
    return path


def is_websocket(request: web.BaseRequest) -> bool:
    """RFC 6455 section 4.1: "The method of the request MUST be GET". Any other may ignore the offer to upgrade."""
    return (
        request.method == "GET"
        and request.headers.get("Upgrade", "").strip().lower() == "websocket"
        and "upgrade" in connection_options(raw_headers(request))
    )


def peer(request: web.BaseRequest, headers: Headers, trusted: Sequence[Network]) -> str:
    """Who asks: the last address in X-Forwarded-For that no trusted proxy has, if a trusted one connects."""
    remote = request.remote or ""
    if not trusted or not network_holds(trusted, remote):
        return remote
    hops = [
        hop.strip()
        for name, value in headers
        if name.lower() == "x-forwarded-for"
        for hop in value.split(",")
        if hop.strip()
    ]
    for hop in reversed(hops):
        if not network_holds(trusted, hop):
            return _address(hop) or remote
    return remote


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


class BodyStalled(InvalidRequest):
    """RFC 9110 section 15.5.9: the request did not come in the time that the server would wait."""

    status = 408
    code = "request_timeout"


async def invite(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`: the client holds its body back until then (RFC 9110 section 10.1.1).

    Called when the body is wanted, so that what is refused before is never sent.
    """
    if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # No part of the answer proper.
        request.writer.output_size = 0


async def read_body(request: web.BaseRequest, max_bytes: int, idle_s: float) -> bytes:
    """The whole body, never more than `max_bytes`. Raises as `body_parts` does."""
    parts = [part async for part in body_parts(request, max_bytes, idle_s)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_parts(request: web.BaseRequest, max_bytes: int, idle_s: float) -> AsyncIterator[bytes]:
    """The body as it comes. Raises TooLarge, BodyStalled after a pause, InvalidRequest where it breaks off."""
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise TooLarge(f"the body has {declared} bytes, more than the limit of {max_bytes}")
    await invite(request)
    content = request.content
    size = 0
    while True:
        try:
            async with asyncio.timeout(idle_s):
                data = await content.readany()
        except TimeoutError:
            raise BodyStalled(f"the body stopped after {size} bytes: nothing came for {idle_s:g} s") from None
        except web.RequestPayloadError:
            raise InvalidRequest(f"the body broke off after {size} bytes") from None
        if not data:
            return
        size += len(data)
        if size > max_bytes:
            raise TooLarge(f"the body has more than {max_bytes} bytes, the limit")
        yield data
