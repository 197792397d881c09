"""What all wire shapes have in common: a request as it was read, and the edits that can be made to it. Pure.

A dialect's *items* are the elements of its conversation on the wire (`messages`, or `input` of Responses).
Its *chat view* is the same conversation as Chat Completions messages: what counters count and what
`proxy.history` plans with. `origin` ties the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from proxy.errors import ProxyError

Path: TypeAlias = tuple[str | int, ...]
"""The way from an item down to a string in it, such as `("content", 0, "text")`."""


class Place(NamedTuple):
    """A string in an item of the conversation."""

    item: int
    path: Path


class Usage(NamedTuple):
    """Tokens as the upstream reports them; None where it does not say."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """What leaves other than it came. None of it set: the original bytes go on."""

    kept: Sequence[int] | None = None
    """Rising indices of the items that stay; None: all of them."""
    texts: Mapping[Place, str] = field(default_factory=dict)
    """Strings that get another value, in items that stay."""
    prompt: str | Sequence[int] | None = None
    """What takes the place of a plain prompt (`/v1/completions`): a part of it, as it was given."""
    summary: str | None = None
    """Text put in front of the first kept user message behind the head (a message of its own where none is)."""
    model: str | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    """Fields that get another number, or are put in."""
    add_usage: bool = False

    @property
    def none(self) -> bool:
        return not (self.of_history or self.model is not None or self.caps or self.add_usage)

    @property
    def of_history(self) -> bool:
        """Whether the conversation itself changes, and with it the count."""
        return (
            self.kept is not None or bool(self.texts) or self.summary is not None or self.prompt is not None
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """A parsed request. `fields`, `items` and `chat` are to be read, never changed."""

    dialect: Dialect = field(repr=False)
    raw: bytes = field(repr=False)
    fields: Mapping[str, Any] = field(repr=False)
    model: str
    stream: bool
    asks_usage: bool
    """The stream's usage belongs to the client: it asked for it, or this API always gives it."""
    caps: Mapping[str, Any]
    """What the client gave as caps of the completion, by field, as it gave them; null counts as not given."""
    items: Sequence[Any] = field(repr=False)
    chat: Mapping[str, Any] = field(repr=False)
    """The request as a Chat Completions body; `{"prompt": ...}` for `/v1/completions`."""
    origin: Sequence[range] | None = field(repr=False, default=None)
    """The items that each chat message came from (empty: from elsewhere, such as `instructions`). Neighbours
    may share items, and both ends never fall. None: message i is item i."""
    several: bool = False
    """Several plain prompts in one request: each is answered on its own, and no window holds their sum."""
    may_be_cut: bool = False
    """The client lets the upstream cut a prompt that is too long, as by `truncation: auto`."""
    unsure: tuple[str, ...] = ()
    """Each reason why the upstream may count more than is seen here, such as `previous_response_id`."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The chat view's messages; none for a plain prompt."""
        messages: Sequence[Mapping[str, Any]] = self.chat.get("messages", ())
        return messages


def event(body: bytes, kind: bytes = b"") -> bytes:
    """A body as an event of a stream (HTML standard, "Server-sent events"): its data ends with the line."""
    data = b"data: " + body.replace(b"\r", b"").replace(b"\n", b" ") + b"\n\n"
    return b"event: " + kind + b"\n" + data if kind else data


class Dialect(Protocol):
    """One wire shape."""

    @property
    def path(self) -> str: ...
    def parse(self, raw: bytes) -> Prompt:
        """Raises InvalidJson or InvalidRequest, naming the place."""
        ...

    def view(self, prompt: Prompt, edits: Edits) -> Prompt:
        """The prompt with all edits of the conversation applied to `items`, `chat` and `origin`; `raw` as it was."""
        ...

    def encode(self, prompt: Prompt, edits: Edits) -> bytes:
        """The body to send. Edits are splices: whatever is not replaced keeps its bytes, order and spacing."""
        ...

    def tool_outputs(self, prompt: Prompt) -> Sequence[tuple[Place, str]]:
        """Every text that a tool returned, in order."""
        ...

    def cap_names(self, *, reasoning: bool) -> Sequence[str]:
        """The fields that this API has for the completion's cap; the first is the one in which ours is put in."""
        ...

    def usage(self, value: Any) -> Usage | None:
        """What a reply's body or one event of a stream, parsed, says of usage; None where it says nothing."""
        ...

    def error_body(self, error: ProxyError) -> bytes:
        """An error of ours in this API's shape."""
        ...

    def error_event(self, body: bytes) -> bytes:
        """An error body of this API as the last event of a stream."""
        ...
