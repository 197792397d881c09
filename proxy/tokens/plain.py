"""The prompt of a plain completion (`/v1/completions`): text or token ids, one prompt or several. Pure.

The shapes are OpenAI's, which vLLM 0.32 takes as they are (renderers/inputs/preprocess.py, `prompt_to_seq`), and
llama.cpp's besides: one prompt of ids and texts mixed (tools/server/server-common.cpp, `tokenize_mixed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Request fields that change what is billed in ways that are not followed here.
_UNSEEN = {
    "suffix": "a suffix, which the server puts into a prompt of its own making",
    "prompt_embeds": "prompt embeddings",
    "truncate_prompt_tokens": "a prompt that the server is asked to truncate",
}


@dataclass(slots=True)
class PlainPrompt:
    """What is to be counted. Token ids count one each; a text that begins a prompt may get a BOS before it."""

    first: list[str] = field(default_factory=list)
    """Texts that begin a prompt."""
    later: list[str] = field(default_factory=list)
    """Texts that follow something else in theirs."""
    ids: int = 0
    unsure: dict[str, None] = field(default_factory=dict)  # in order, each once

    @property
    def texts(self) -> list[str]:
        return [*self.first, *self.later]


def plain_prompt(body: Mapping[str, Any]) -> PlainPrompt | None:
    """The prompt of a body that has one in place of messages; None for any other body."""
    given = body.get("prompt")
    if given is None or body.get("messages") is not None:
        return None
    out = PlainPrompt()
    out.unsure.update((reason, None) for key, reason in _UNSEEN.items() if body.get(key) is not None)
    several = isinstance(given, list) and not any(type(item) is int for item in given)
    for prompt in given if several else [given]:
        _add(prompt, out)
    return out


def _add(given: Any, out: PlainPrompt) -> None:
    """One prompt."""
    for number, part in enumerate(given if isinstance(given, list) else [given]):
        if isinstance(part, str):
            (out.later if number else out.first).append(part)
        elif type(part) is int:
            out.ids += 1
        else:
            out.unsure["a prompt that is neither text nor token ids"] = None
