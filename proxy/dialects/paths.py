"""Which dialect is spoken at a path. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Dialect
from proxy.dialects.responses import RESPONSES

DIALECTS: Mapping[str, Dialect] = {each.path: each for each in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
"""By the path of a prompt."""


def spoken_at(path: str) -> Dialect:
    """The dialect of a path, for its errors also: OpenAI's wherever there is none of its own."""
    if path.startswith(f"{MESSAGES.path}/"):
        return MESSAGES
    return DIALECTS.get(path, CHAT)
