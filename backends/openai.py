"""OpenAI, and anything that speaks its API at a `base_url`."""

from __future__ import annotations

from backends.http import HttpBackend

OPENAI_BASE_URL = "https://api.openai.com/v1"
OPENAI_KEEPALIVE_S = 60.0
"""OpenAI's edge keeps idle connections for minutes; a TLS handshake for each turn would be seen."""


class OpenAIBackend(HttpBackend):
    """The general upstream: everything it needs is in `HttpBackend`."""
