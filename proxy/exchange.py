"""One request, as a typed object: `Exchange`, and `Attempt`, one model's try at it.

Inputs are given to `__init__`; every other field is set by the stage that `proxy.pipeline` names for it, and
reading it earlier is an AttributeError. So no field is ever "None because its stage did not run".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from backends.base import Headers, Target
from proxy.config import Cap, Context, FuseOverride, Network
from proxy.dialects.chat import is_reasoning
from proxy.dialects.prompt import Edits, Prompt
from proxy.history.plan import Cut
from proxy.history.summary import Boundary
from proxy.tokens.counts import Counter, Counts
from proxy.tokens.truth import Truth

Outcome = Literal[
    "ok", "refused", "tripped", "overflow", "upstream_error", "interrupted", "client_gone", "failed"
]
FuseStatus = Literal["ok", "tripped", "allowed"]
SummaryState = Literal["none", "pending", "used"]
"""Of what the cut dropped: used in this prompt; being written, for a later one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `anonymous` where no callers are configured: the client's key is between it and upstream."""

    name: str
    models: Sequence[str]
    may_choose_context: bool


ANONYMOUS = Caller("anonymous", ("*",), may_choose_context=True)


@dataclass(frozen=True, slots=True)
class Limit:
    """The fuse for this request: prompt tokens allowed, and what happens above."""

    max_context_tokens: int | None = None
    enforced: bool = True
    allowed: bool = False
    """The caller or its network is on the allow list: counted in full, never refused."""

    @property
    def stops_counting(self) -> int | None:
        """Where counting may stop: beyond it nothing but the refusal depends on the number."""
        return self.max_context_tokens if self.enforced and not self.allowed else None


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it is served under the name that was asked for."""

    name: str
    entry: str
    """The config's name for it: a pattern perhaps. Bounded in number, so it can be a metric's label."""
    targets: Sequence[Target]
    counter: Counter
    window: int | None
    context: Context
    cap: Cap
    fuse: FuseOverride | None
    """What the model sets for itself; the route and the caller may set it again."""
    truth: Truth = field(default_factory=Truth, repr=False, compare=False)
    """What its replies have taught about the count."""

    @property
    def room_window(self) -> int | None:
        """What a prompt and its completion have to fit into: the window less the margin for errors of the count."""
        return self.truth.usable(self.window)

    @property
    def budget(self) -> int | None:
        return self.context.budget(self.window)

    @property
    def limit(self) -> int | None:
        """What a prompt is cut to: the budget, or less where the window leaves less beside the least completion."""
        if self.budget is None or self.room_window is None:
            return self.budget
        return max(1, min(self.budget, self.room_window - self.least_completion))

    @property
    def least_completion(self) -> int:
        own = self.cap.reasoning_min_tokens if is_reasoning(self.targets[0].model) else None
        return own or self.cap.min_tokens or 1


@dataclass(frozen=True, slots=True)
class Shaped:
    """What of the conversation is sent on: the cut, and the exact count with it."""

    counts: Counts
    cut: Cut | None = None
    """None: everything is kept."""
    trimmed_tokens: int = 0
    edits: Edits = field(default_factory=Edits)
    """What of the conversation leaves other than it came."""
    summary: SummaryState = "none"
    boundary: Boundary | None = None
    """To be kept to once this is sent; None: no summaries are made, or nothing is cut."""

    @property
    def dropped_turns(self) -> int:
        return 0 if self.cut is None else self.cut.dropped_turns


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """The completion's cap as it is sent on."""

    value: int | None
    """The number in force. None: the client gave none and nothing sets one."""
    name: str | None
    """The field of the body that holds it."""
    clamped: Literal["", "ceiling", "room"] = ""
    """Why the client's own number was lowered."""
    written: Mapping[str, int] = field(default_factory=dict)
    """The fields of the body that get another value, or are put in."""


@dataclass(slots=True)
class Progress:
    """What is known of the reply so far. Written by the relay, read by the account at whatever end."""

    first_backend: str = ""
    backend: str = ""
    status: int = 0
    first_byte: float = 0.0
    """Clock (`time.perf_counter`) at the first byte of the reply's body; 0.0: none came."""
    last_chunk: float = 0.0
    chunks: int = 0
    usage_prompt: int | None = None
    usage_completion: int | None = None
    usage_cached: int | None = None
    sent_at: float = 0.0
    """Clock at which the request went to the backend that answered."""
    tries: int = 0


@dataclass(slots=True)
class Exchange:
    """A chat request from its body to its single, final outcome."""

    id: str
    path: str
    """Raw path and query as received."""
    headers: Headers
    peer: str
    """The client's address, or what a trusted proxy says it is."""
    arrived: float
    """Clock (`time.perf_counter`)."""
    timings: dict[str, float] = field(init=False, repr=False, default_factory=dict)
    """Seconds spent in each stage, by its name."""
    progress: Progress = field(init=False, repr=False, default_factory=Progress)
    attempts: list[Attempt] = field(init=False, repr=False, default_factory=list)

    body: bytes = field(init=False, repr=False)
    """Set by the handler: an exchange is accounted from its first header on."""

    # admission
    prompt: Prompt = field(init=False, repr=False)
    caller: Caller = field(init=False, repr=False)
    candidates: Sequence[Model] = field(init=False, repr=False)
    limit: Limit = field(init=False, repr=False)

    outcome: Outcome = field(init=False)

    def attempt(self, model: Model) -> Attempt:
        """This request's try with one model. The fuse judges the first one that can be counted, and no other."""
        judged = any(hasattr(earlier, "fuse_status") for earlier in self.attempts)
        attempt = Attempt(
            exchange=self,
            prompt=self.prompt,
            caller=self.caller,
            model=model,
            limit=Limit() if judged else self.limit,
        )
        self.attempts.append(attempt)
        return attempt

    def finish(self, outcome: Outcome) -> None:
        """The first outcome stands: what comes later (a disconnect after an error, say) follows from it."""
        if not hasattr(self, "outcome"):
            self.outcome = outcome


@dataclass(slots=True)
class Attempt:
    """One candidate model, with counts, shape and cap made for it."""

    exchange: Exchange = field(repr=False)
    prompt: Prompt = field(repr=False)
    caller: Caller
    model: Model = field(repr=False)
    limit: Limit

    counts: Counts = field(init=False, repr=False)
    fuse_status: FuseStatus = field(init=False, repr=False)
    shaped: Shaped = field(init=False, repr=False)
    max_tokens: MaxTokens = field(init=False, repr=False)
    targets: Sequence[Target] = field(init=False, repr=False)

    @property
    def timings(self) -> dict[str, float]:
        return self.exchange.timings


def network_holds(networks: Sequence[Network], peer: str) -> bool:
    """Whether an address is in one of the networks; an address that cannot be read is in none."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any(address in network for network in networks)
