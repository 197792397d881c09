"""Where an engine that chatfuse runs listens. Plain data, so that it can be given to workers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    api_key: str = field(repr=False)
    window_tokens: int | None = None
    """What one request has for prompt and completion; None where the engine is asked for it."""
    socket_path: str | None = None
    """A Unix socket to connect to."""
    state_folder: str | None = None
    """Where its supervisor says how it is (`backends.engine_state`)."""
