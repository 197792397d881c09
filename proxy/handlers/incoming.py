"""What a request says, read with care: its id, its peer, its body."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import uuid
from collections.abc import Sequence

from aiohttp import HttpVersion11, web

from backends.base import Headers
from proxy.config import Network
from proxy.errors import InvalidRequest, TooLarge
from proxy.exchange import network_holds

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
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
    """Path and query as received. Raises InvalidRequest for one that would leave its folder upstream."""
    path = request.raw_path
    if not path.startswith("/"):
        # Absolute form, as sent to a forward proxy (RFC 9112 section 3.2.2).
        path = "/" + path.partition("://")[2].partition("/")[2]
    if _DOT_SEGMENT.search(path.partition("?")[0]):
        raise InvalidRequest("the path holds a dot segment or a backslash")
    return path


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
    """The whole body. Raises TooLarge before more than `max_bytes` are held, BodyStalled after a pause."""
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise TooLarge(f"the body has {declared} bytes, more than the limit of {max_bytes}")
    await invite(request)
    content = request.content
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(idle_s) as timer:
            while data := await content.readany():
                size += len(data)
                if size > max_bytes:
                    raise TooLarge(f"the body has more than {max_bytes} bytes, the limit")
                parts.append(data)
                timer.reschedule(loop.time() + idle_s)
    except TimeoutError:
        raise BodyStalled(f"the body stopped after {size} bytes: nothing came for {idle_s:g} s") from None
    except web.RequestPayloadError:
        raise InvalidRequest(f"the body broke off after {size} bytes") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
