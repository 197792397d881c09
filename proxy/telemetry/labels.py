"""Label values from outside, kept bounded in number and shape. Pure."""

from __future__ import annotations

import ipaddress

OTHER = "other"


class Bounded:
    """The first `limit` distinct values are told apart, later ones are `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def label(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > 200:
            return OTHER
        self._seen.add(value)
        return value

    def __contains__(self, value: str) -> bool:
        return value in self._seen


def client_ip(peer: str, mode: str) -> str:
    """An address as a label: whole, or its network only (IPv4 /24, IPv6 /48)."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return OTHER
    if mode == "full":
        return str(address)
    prefix = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((address, prefix), strict=False).network_address)
