"""What a conversation has of summaries: one for each boundary that it was cut at, under the caller's own key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from backends.headers import client_key
from proxy import config
from proxy.exchange import ANONYMOUS, Attempt, SummaryState
from proxy.history import summary
from proxy.history.plan import Cut, kept_indices
from proxy.history.summary import Boundary, Summarized

VERSION = "1"
"""Of the summarizer's instructions: others make another summary."""


class Book(Protocol):
    """The summaries of a process, as `proxy.summaries` keeps them. Everything here is at hand: nothing is awaited."""

    @property
    def secret(self) -> bytes: ...
    def peek(self, key: bytes) -> str:
        """What this boundary would be sent with now; empty: without a summary."""
        ...

    def decide(self, key: bytes, text: str) -> None: ...
    def written(self, key: bytes) -> str: ...
    def pending(self, key: bytes) -> bool: ...
    def want(self, key: bytes, settings: config.Summary, work: Callable[[], Summarized]) -> bool: ...
    async def ready(self, key: bytes) -> None:
        """Until the summary is no longer being written. For whoever works ahead; no request calls it."""
        ...


class Memories:
    """Of one conversation of one caller. Called with a cut, it gives what is put in front of what that keeps."""

    def __init__(self, book: Book, attempt: Attempt) -> None:
        self._book = book
        self._settings = attempt.model.context.summary
        self._messages: Sequence[Mapping[str, Any]] = attempt.prompt.messages
        self._owner = owner(attempt)
        self._keys: dict[Cut, bytes] = {}
        self._texts: dict[Cut, str] = {}
        """As first looked at: what is counted is what is sent, also when a summary comes in between."""

    def __call__(self, cut: Cut) -> str:
        text = self._text(cut)
        return summary.label(text) if text else ""

    def key(self, cut: Cut) -> bytes:
        key = self._keys.get(cut)
        if key is None:
            dropped = [self._messages[i] for i in self._dropped(cut)]
            key = self._keys[cut] = summary.key(self._book.secret, self._owner, dropped)
        return key

    def boundary(self, cut: Cut) -> Boundary:
        """What the cut is sent with, if it is sent."""
        return Boundary(self.key(cut), self._text(cut))

    def state(self, cut: Cut) -> SummaryState:
        if self._text(cut):
            return "used"
        return "pending" if self._book.pending(self.key(cut)) else "none"

    def want(self, cut: Cut, before: Cut | None) -> bool:
        """Have the summary for a cut written, on top of the one for the cut `before` it. True: it is coming."""
        key = self.key(cut)
        return self._book.want(key, self._settings, lambda: self._work(key, cut, before))

    def _text(self, cut: Cut) -> str:
        if cut not in self._texts:
            self._texts[cut] = self._book.peek(self.key(cut))
        return self._texts[cut]

    def _work(self, key: bytes, cut: Cut, before: Cut | None) -> Summarized:
        dropped = self._dropped(cut)
        former = self._book.written(self.key(before)) if before is not None else ""
        if former and before is not None:
            held = set(self._dropped(before))
            dropped = [i for i in dropped if i not in held]
        return Summarized(key, former, tuple(summary.transcript(self._messages[i]) for i in dropped))

    def _dropped(self, cut: Cut) -> list[int]:
        kept = set(kept_indices(cut))
        return [i for i in range(len(self._messages)) if i not in kept]


def owner(attempt: Attempt) -> Sequence[str]:
    """Whose summary it is, and how it is made. Without callers of ours the client's own key tells clients apart."""
    settings = attempt.model.context.summary
    who = attempt.caller.name
    if attempt.caller is ANONYMOUS:
        given = client_key(attempt.exchange.headers) or ""
        who = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()
    return (VERSION, who, attempt.model.entry, settings.model or "", str(settings.max_tokens))
