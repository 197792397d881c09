"""Kind → constructor."""

from __future__ import annotations

from backends.base import Auth, Backend, Timeouts
from backends.embedded import EmbeddedBackend
from backends.endpoint import Endpoint
from backends.http import KEEPALIVE_S, HttpOptions
from backends.openai import OPENAI_BASE_URL, OPENAI_KEEPALIVE_S, OpenAIBackend
from backends.vllm.backend import OwnVllmBackend, VllmBackend


def openai(
    name: str,
    base_url: str,
    *,
    auth: Auth,
    key: str | None,
    ask_usage: str,
    keepalive_s: float | None,
    timeouts: Timeouts,
) -> Backend:
    if keepalive_s is None:
        keepalive_s = OPENAI_KEEPALIVE_S if base_url == OPENAI_BASE_URL else KEEPALIVE_S
    return OpenAIBackend(HttpOptions(name, base_url, auth, key, timeouts, ask_usage, keepalive_s))


def vllm(
    name: str,
    base_url: str,
    *,
    auth: Auth,
    key: str | None,
    ask_usage: str,
    keepalive_s: float | None,
    timeouts: Timeouts,
) -> Backend:
    """One that runs, and is joined."""
    return VllmBackend(
        HttpOptions(name, base_url, auth, key, timeouts, ask_usage, keepalive_s or KEEPALIVE_S)
    )


def own_vllm(name: str, endpoint: Endpoint, timeouts: Timeouts, ask_usage: str) -> Backend:
    return OwnVllmBackend(name, endpoint, timeouts, ask_usage)


def embedded(name: str, endpoint: Endpoint, timeouts: Timeouts) -> Backend:
    return EmbeddedBackend(name, endpoint, timeouts)
