"""Which header fields cross the proxy, and whose credentials go along. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from backends.base import Auth, Headers

HOP_BY_HOP = frozenset(
    (
        # RFC 9110 section 7.6.1, with the older names that servers still send
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
CREDENTIALS = frozenset(
    ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project", "cookie")
)
"""What tells an upstream who asks. The organization and project headers select whose account is billed."""

OURS = "x-chatfuse-"
REQUEST_ID = "x-request-id"
_SET_BY_THE_CLIENT_SIDE = frozenset(("host", "content-length", "expect"))
_WEBSOCKET_HANDSHAKE = frozenset(
    ("sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol")
)
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""Browsers cannot set headers on a WebSocket, so OpenAI's realtime API takes the key as a subprotocol."""
_CREDENTIAL_SUBPROTOCOLS = (KEY_SUBPROTOCOL, "openai-organization.", "openai-project.")


def connection_options(headers: Headers) -> frozenset[str]:
    """Names that the Connection header makes hop-by-hop for this message (RFC 9110 section 7.6.1)."""
    return frozenset(
        option.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for option in value.split(",")
    )


def to_upstream(headers: Headers, auth: Auth, key: str | None, drop: frozenset[str]) -> list[tuple[str, str]]:
    """The client's fields as the upstream may see them.

    `client`: credentials go along as they came. `config`: all of the client's are replaced by our key.
    `none`: removed. `drop`: further names (lower case) to leave out.
    """
    left_out = drop | connection_options(headers)
    kept: list[tuple[str, str]] = []
    for name, value in headers:
        low = name.lower()
        if (
            low in HOP_BY_HOP
            or low in left_out
            or low in _SET_BY_THE_CLIENT_SIDE
            or low in _WEBSOCKET_HANDSHAKE
            or low.startswith(OURS)
            or (auth != "client" and low in CREDENTIALS)
        ):
            continue
        kept.append((name, value))
    if auth == "config" and key is not None:
        kept.append(("Authorization", f"Bearer {key}"))
    return kept


def to_client(headers: Headers) -> list[tuple[str, str]]:
    """The upstream's fields as the client may see them. Our own names are ours alone to set.

    So is `x-request-id`: one id goes through the answer, the errors and the log.
    """
    left_out = connection_options(headers)
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower()) not in HOP_BY_HOP
        and low not in left_out
        and low != REQUEST_ID
        and not low.startswith(OURS)
    ]


def subprotocols(headers: Headers, auth: Auth, key: str | None) -> list[str]:
    """What to offer in `Sec-WebSocket-Protocol`; a key in it follows the rule of any other credential."""
    offered = [
        part.strip()
        for name, value in headers
        if name.lower() == "sec-websocket-protocol"
        for part in value.split(",")
        if part.strip()
    ]
    if auth == "client":
        return offered
    return [part for part in offered if not part.lower().startswith(_CREDENTIAL_SUBPROTOCOLS)]


def client_key(headers: Iterable[tuple[str, str]]) -> str | None:
    """The key that a client sent, wherever its SDK puts it; None when there is none."""
    key = None
    for name, value in headers:
        low = name.lower()
        if low == "authorization":
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
        elif low in ("x-api-key", "api-key") and value.strip():
            key = value.strip()
        elif low == "sec-websocket-protocol":
            for part in value.split(","):
                if part.strip().startswith(KEY_SUBPROTOCOL):
                    key = part.strip().removeprefix(KEY_SUBPROTOCOL)
    return key
