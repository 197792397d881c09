"""What replies teach about our counts: drift, silent truncation, margins, and what a server adds. Pure.

One `Truth` for each model as a server has it, kept over reloads. It is told of every reply's reported prompt
tokens, and is asked by the counter and by whoever compares a count with the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from backends.json_bytes import digestible
from proxy.bounded import remember
from proxy.tokens.counts import Counts

MARGIN_STEPS: Final = (0.0, 0.01, 0.02, 0.04)
"""Shares of the window. Few and only rising, so that what is compared with the window seldom moves."""
RAISES: Final = 3
"""So many replies over the margin raise it: one odd request must not cost every other one its room."""
WATCHED: Final = 50
DRIFTS: Final = 3
"""Of the last `WATCHED` counts called exact so many were off: 6 %, where OpenAI's rules miss 0.25 %."""
FEWER_SHARE: Final = 0.9
FEWER_TOKENS: Final = 64
GUESSED_SHARE: Final = 0.5
"""A server that reports less than this share of a count that was not sure has left something out, too."""
MAX_OFFSETS: Final = 1000
"""Tool sets come from clients: what is remembered of them is bounded."""
MAX_OFFSET_TOKENS: Final = 1024
_SET_UP: Final = ("tools", "tool_choice", "functions", "response_format")
"""What a server may add a text of its own for."""


class Finding(NamedTuple):
    """What one reply has shown. `error` is the report less the count."""

    error: int
    truncated: bool = False
    drift_began: bool = False
    drift_ended: bool = False
    margin_rose: bool = False


@dataclass(slots=True)
class Truth:
    """Counts against reports, for one model on one server."""

    distrusted: bool = False
    """The server counts otherwise than we do: ask it, where it can be asked."""
    drifting: bool = False
    truncations: int = 0
    _step: int = 0
    _over: int = 0
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=WATCHED))
    _offsets: dict[bytes, int] = field(default_factory=dict)
    _unstable: dict[bytes, None] = field(default_factory=dict)
    _candidates: dict[bytes, int] = field(default_factory=dict)
    """An error seen once with a count that was called exact: it is taken for an offset when it comes again."""

    @property
    def margin(self) -> float:
        """The share of the window that is kept free for errors of the count."""
        return MARGIN_STEPS[self._step]

    def usable(self, window: int | None) -> int | None:
        """The window less the margin."""
        return window if window is None or not self._step else window - round(window * self.margin)

    def offset(self, body: Mapping[str, Any]) -> int:
        """What this server adds to such a request, as far as it has been seen."""
        return self._offsets.get(set_up(body), 0) if self._offsets else 0

    def note(
        self,
        body: Mapping[str, Any],
        counts: Counts,
        reported: int,
        window: int | None = None,
        *,
        may_be_cut: bool = False,
        teaches: bool = True,
    ) -> Finding:
        """A reply's own number for a prompt that was counted whole. `body`: its chat view.

        `may_be_cut`: the client has allowed the server to leave some of it out, so it shows nothing. `teaches`:
        what the server adds to it is added to every other request with the same tools.
        """
        if may_be_cut and reported < counts.tokens:
            return Finding(reported - counts.tokens)
        error = reported - counts.tokens
        truncated = is_truncated(counts, reported)
        began = ended = False
        if counts.exact:
            self._recent.append(error != 0)
            drifting = sum(self._recent) >= DRIFTS if not self.drifting else any(self._recent)
            began, ended = drifting and not self.drifting, self.drifting and not drifting
            self.drifting = drifting
        rose = False
        if window and not truncated and error > self.margin * window and self._step + 1 < len(MARGIN_STEPS):
            self._over += 1
            if self._over >= RAISES:
                self._over = 0
                while self._step + 1 < len(MARGIN_STEPS) and error > self.margin * window:
                    self._step += 1
                rose = True
        if truncated:
            self.truncations += 1
        if error and teaches and not truncated and is_text(body):
            self._learn(set_up(body), error, sure=counts.exact)
        return Finding(error, truncated, began, ended, rose)

    def _learn(self, key: bytes, error: int, *, sure: bool) -> None:
        """The first report decides, or the second where the count was called exact. What then differs is no offset."""
        if key in self._unstable:
            return
        if key in self._offsets:
            del self._offsets[key]
            remember(self._unstable, key, None, MAX_OFFSETS)
        elif abs(error) <= MAX_OFFSET_TOKENS and (not sure or self._candidates.get(key) == error):
            self._candidates.pop(key, None)
            remember(self._offsets, key, error, MAX_OFFSETS)
        elif sure:
            remember(self._candidates, key, error, MAX_OFFSETS)


def is_truncated(counts: Counts, reported: int) -> bool:
    """Whether the server has read far fewer tokens than it was sent (Ollama's default, for one)."""
    if not reported or not counts.complete:
        return False
    share = FEWER_SHARE if counts.exact else GUESSED_SHARE
    return reported < counts.tokens * share and counts.tokens - reported > FEWER_TOKENS


def is_text(body: Mapping[str, Any]) -> bool:
    """Whether the messages hold nothing but text: what an image costs is no offset of the server."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list) and not all(
            isinstance(part, str) or (isinstance(part, Mapping) and isinstance(part.get("text"), str))
            for part in content
        ):
            return False
    return True


def set_up(body: Mapping[str, Any]) -> bytes:
    """A digest of what a request sets up besides its messages."""
    given = {key: body[key] for key in _SET_UP if body.get(key) is not None}
    return blake2b(digestible(given, sort_keys=True), digest_size=16).digest()
