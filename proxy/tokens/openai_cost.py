"""A cost in tokens whose texts are still to be tokenized, and the bill on which one is drawn up."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens, and texts each to be tokenized separately and added; `unsure` names reasons to doubt it.

    A reason never holds text of a message: it is logged and labels a metric.
    """

    tokens: int
    texts: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()


NOTHING = Cost(0)


@dataclass(slots=True)
class Bill:
    """A cost while it is being added up."""

    tokens: int = 0
    texts: list[str] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)  # in order, each once

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def text(self, text: str) -> None:
        if text:
            self.texts.append(text)

    def doubt(self, *reasons: str) -> None:
        self.reasons.update(dict.fromkeys(reasons))

    def cost(self) -> Cost:
        return Cost(self.tokens, tuple(self.texts), tuple(self.reasons))
