"""Everything that one numbered config needs to serve. A reload builds a new one and swaps the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from backends.base import Backend
from proxy.account import Account
from proxy.ahead import Ahead
from proxy.config import Config
from proxy.exchange import ANONYMOUS, Attempt, Caller, Exchange
from proxy.learner import Learner
from proxy.pipeline import Pipeline
from proxy.relay import Relay
from proxy.routing.names import matches
from proxy.sampling import Sampler
from proxy.stages.identify import Catalog, Keys
from proxy.telemetry.metrics import Metrics


@dataclass(slots=True)
class Runtime:
    config: Config
    backends: Mapping[str, Backend]
    catalog: Catalog
    keys: Keys
    admission: Pipeline[Exchange]
    fitting: Pipeline[Attempt]
    relay: Relay
    account: Account
    metrics: Metrics
    learner: Learner
    ahead: Ahead
    sampler: Sampler
    passthrough: PassthroughRules
    users: int = 0
    """Requests that still run on this one."""
    on_idle: Callable[[], None] | None = field(default=None, repr=False)
    """Called when a replaced runtime has no more users."""


@dataclass(frozen=True, slots=True)
class PassthroughRules:
    """Where paths go that we do not know, and which may. No one is given an open relay."""

    backend: Backend | None
    paths: Sequence[str]

    def allows(self, method: str, path: str, caller: Caller) -> bool:
        """Only what is listed, unless the client's own key stands between it and the upstream.

        With callers the key is ours to check, and their models are limited: a path that names a model where
        we do not look would go around that.
        """
        if self.backend is None:
            return False
        if self.backend.auth != "config" and caller is ANONYMOUS:
            return True
        return any(
            allowed == method and matches(pattern, path)
            for allowed, _, pattern in (entry.partition(" ") for entry in self.paths)
        )


class Live:
    """The runtime in force, and whether the process is going down."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.draining = False

    @contextmanager
    def use(self) -> Iterator[Runtime]:
        """The runtime for one request; it stays whole until the request has ended."""
        runtime = self.runtime
        runtime.users += 1
        try:
            yield runtime
        finally:
            runtime.users -= 1
            if runtime.users == 0 and runtime.on_idle is not None:
                runtime.on_idle()
