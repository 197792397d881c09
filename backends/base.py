"""The port to an upstream: what is sent, what comes back, who answers.

Everything above speaks only to these Protocols; `backends.http` is the one place that knows aiohttp.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from backends.kv_state import KvState

Headers: TypeAlias = Sequence[tuple[str, str]]
"""Header fields in the order and spelling received; names repeat where the wire repeated them."""

Auth: TypeAlias = Literal["client", "config", "none"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. None: no such timer."""

    connect_s: float = 10.0
    ttft_s: float | None = 600.0
    """From the request being sent to the first byte of the reply's body."""
    idle_s: float | None = 300.0
    """Between two reads of the body."""
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One HTTP request to pass on. `headers` are the client's; the backend applies its own rules to them."""

    method: str
    path: str
    """Raw path and query as the client sent them, beginning with `/v1/`."""
    headers: Headers
    body: bytes | AsyncIterable[bytes] | None = None


class Reply(Protocol):
    """The head of an upstream's answer, and its body still to be read. Must be closed."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def headers(self) -> Headers:
        """As received, hop-by-hop fields removed."""
        ...

    async def read_some(self) -> bytes:
        """The bytes that are there, at least one; `b""` at the end. Raises BackendError."""
        ...

    def close(self) -> None:
        """Done with it: a reply read to its end gives its connection back, any other one is cut off."""
        ...


class Socket(Protocol):
    """An upstream WebSocket, message by message."""

    @property
    def protocol(self) -> str | None: ...
    async def receive(self) -> str | bytes | None:
        """The next message; None when the upstream closed."""
        ...

    async def send(self, message: str | bytes) -> None: ...
    async def close(self, code: int = 1000, reason: bytes = b"") -> None: ...
    @property
    def close_code(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    detail: str = ""


class Backend(Protocol):
    """One upstream server."""

    @property
    def name(self) -> str: ...
    @property
    def auth(self) -> Auth: ...
    @property
    def ask_usage(self) -> bool:
        """Whether usage may be asked for in streams (`stream_options.include_usage`)."""
        ...

    def window_tokens(self, model: str) -> int | None:
        """The context window that the upstream itself gives a model; None when it does not tell."""
        ...

    def oracle(self, model: str) -> Oracle | None:
        """The upstream's own way of counting prompts for a model; None when it has none, as far as is known."""
        ...

    @property
    def tells(self) -> bool:
        """Whether there is anything to learn from it."""
        ...

    async def learn(self) -> bool:
        """Ask the server what it is: windows, and whether it counts. True when that changed. Raises BackendError."""
        ...

    async def lost(self, within_s: float) -> None:
        """Return when a connection cannot be opened, or after `within_s`: what was learned may be out of date."""
        ...

    def refuse_usage(self) -> None:
        """The upstream answered 400 because of `stream_options`: do not add it again."""
        ...

    async def send(self, request: UpstreamRequest) -> Reply:
        """Send and await the head of the reply. Raises BackendError."""
        ...

    async def open_socket(self, request: UpstreamRequest, max_message_bytes: int) -> Socket: ...

    async def models(self, headers: Headers) -> Sequence[Mapping[str, Any]]:
        """The entries of the upstream's `/v1/models`, as it gave them. Raises BackendError, RefusedList."""
        ...

    async def readiness(self) -> Readiness: ...
    async def sample(self) -> KvState | None:
        """How full its KV memory is, where it says so."""
        ...

    async def close(self) -> None: ...


class Oracle(Protocol):
    """An upstream that counts. Raises BackendError; Uncountable for a prompt that its template does not take."""

    @property
    def scope(self) -> str:
        """The model that it counts for; empty where a server has but one, whatever it is called."""
        ...

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of a chat request, or of a body with one text as its `prompt`, as usage will report them."""
        ...

    async def text_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        ...


class RefusedList(Exception):
    """The upstream answered `/v1/models`, or a WebSocket's handshake, with an error; kept to be passed on as it is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


@dataclass(frozen=True, slots=True)
class Target:
    """One place where a model is served: a backend and the name the model has there."""

    backend: Backend
    model: str
    weight: float = 1.0
