"""What a count of a prompt is, and the port through which stages ask for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one prompt, as the upstream will bill them.

    `tokens` covers everything that is billed as prompt: messages, tools, response format, reply header.
    With `complete=False` counting stopped at the given limit and `tokens` is a lower bound ("at least").
    `unsure` names each reason why the upstream may report another number; empty means exact.
    """

    tokens: int
    complete: bool = True
    unsure: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return self.complete and not self.unsure


class Counter(Protocol):
    """Counts prompts for one model. Awaiting it never blocks the event loop for long."""

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        """Count a whole chat request body; stop early once it is sure to be over `limit` tokens.

        A body with `prompt` in place of `messages` is a plain completion: a text, token ids, or a list of
        either (each is a prompt of its own, and all are billed).
        """
        ...

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
        """Tokens of each message of `body["messages"]`, its unit rendered on its own as an old turn.

        `units`: the messages that stay together, as index ranges over all of them. What belongs to a unit as
        a whole may stand at any of its messages. A weight depends on the unit and the model only, never on
        its neighbours, the tools or the request's options: the grid of cuts is laid over these.
        """
        ...

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        """A beginning of at most `head_tokens` and an end of at most `tail_tokens`, as long as they can be.

        Cut between whole characters as a reader sees them, at the end of a word where one is near, so that both
        have the tokens that they had in the text; they never overlap. The same text and numbers give the same
        answer in every process, and the second time for nothing.
        """
        ...
