"""How a request that is no chat ended: told to the metrics once, whatever way it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from proxy.account import outcome_of
from proxy.errors import ProxyError
from proxy.exchange import Outcome
from proxy.telemetry.metrics import Metrics


@dataclass(slots=True)
class Tally:
    """What is known so far. An outcome that is set stands, whatever error follows from it."""

    backend: str = ""
    outcome: Outcome | None = None


@contextmanager
def tallied(metrics: Metrics) -> Iterator[Tally]:
    """Around all of a request. One that ends without an error and says nothing else was `ok`."""
    tally = Tally()
    outcome: Outcome = "ok"
    try:
        yield tally
    except BaseException as error:
        outcome = outcome_of(error)
        raise
    finally:
        metrics.request("", tally.backend, tally.outcome or outcome)


@contextmanager
def refusals(metrics: Metrics) -> Iterator[None]:
    """Around what is looked at before it is known whose request it is."""
    try:
        yield
    except ProxyError:
        metrics.request("", "", "refused")
        raise
