"""An exchange that has ended → metrics and the log. Synchronous: it also runs in a cancelled handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from backends.errors import BackendError, ClientBodyFailed
from proxy.dialects.chat import CHAT
from proxy.errors import FuseTripped, Overflow, ProxyError, UpstreamError
from proxy.exchange import Attempt, Exchange, Outcome
from proxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

DRAINED = "drained"
"""The message of the cancellation that ends what outlasts a drain."""


def outcome_of(error: BaseException) -> Outcome:
    """How a request ended that this error ended."""
    if isinstance(error, asyncio.CancelledError):
        return "interrupted" if error.args == (DRAINED,) else "client_gone"
    if isinstance(error, ClientBodyFailed | ConnectionError):
        return "client_gone"
    if isinstance(error, FuseTripped):
        return "tripped"
    if isinstance(error, Overflow):
        return "overflow"
    if isinstance(error, UpstreamError | BackendError):
        return "upstream_error"
    return "refused" if isinstance(error, ProxyError) else "failed"


class Account:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, exchange: Exchange) -> Iterator[None]:
        """Around a whole exchange: whatever way it ends, it is accounted once."""
        try:
            yield
        except BaseException as error:
            exchange.finish(outcome_of(error))
            raise
        finally:
            exchange.finish("failed")
            try:
                self._record(exchange)
            except Exception:
                # The client has its answer; a fault in the books must not take it away.
                log.exception("an exchange could not be accounted", extra={"request_id": exchange.id})

    def _record(self, exchange: Exchange) -> None:
        metrics, progress = self._metrics, exchange.progress
        for name, seconds in exchange.timings.items():
            metrics.overhead(name, seconds)
        model = model_label(exchange, metrics)
        metrics.request(model, progress.backend, exchange.outcome)
        if exchange.outcome != "ok":
            log.info(
                "request %s",
                exchange.outcome,
                extra={
                    "request_id": exchange.id,
                    "model": model,
                    "backend": progress.backend,
                    "upstream_status": progress.status or None,
                },
            )
        if exchange.attempts:
            self._record_attempt(exchange, exchange.attempts[0], exchange.attempts[-1], model)
        if progress.first_byte:
            metrics.first_byte(model, progress.backend, progress.first_byte - exchange.arrived)
            if progress.chunks > 1:
                metrics.inter_chunk((progress.last_chunk - progress.first_byte) / (progress.chunks - 1))
        for kind, number in (
            ("prompt", progress.usage_prompt),
            ("completion", progress.usage_completion),
            ("cached", progress.usage_cached),
        ):
            if number:
                metrics.tokens(model, kind, number)

    def _record_attempt(self, exchange: Exchange, first: Attempt, last: Attempt, model: str) -> None:
        metrics, progress = self._metrics, exchange.progress
        if hasattr(first, "counts"):
            metrics.measured(model, first.counts.tokens, exchange.timings.get("count", 0.0))
            metrics.tokens(model, "prompt_original", first.counts.tokens)
            status = getattr(first, "fuse_status", "tripped")
            metrics.fuse(status)
            if status == "tripped":
                metrics.tripped(model, exchange.path.partition("?")[0], exchange.peer)
        if hasattr(last, "max_tokens") and last.max_tokens.clamped:
            metrics.clamped(model, last.max_tokens.clamped)
        if not hasattr(last, "shaped"):
            return
        if last.shaped.cut is not None:
            metrics.cut(model, last.shaped.trimmed_tokens)
        if last.shaped.summary == "used":
            metrics.summary("used")
        if progress.tries:
            metrics.tokens(model, "prompt_sent", last.shaped.counts.tokens)
        if progress.usage_prompt is not None and last.shaped.counts.complete:
            self._learn(last, progress.usage_prompt, model)

    def learn(self, last: Attempt, reported: int) -> None:
        """Compare a count with the upstream's own, which was asked for it."""
        self._learn(last, reported, model_label(last.exchange, self._metrics))

    def _learn(self, last: Attempt, reported: int, model: str) -> None:
        exchange, served, counts = last.exchange, last.model, last.shaped.counts
        metrics = self._metrics
        metrics.count_error(model, reported - counts.tokens)
        if exchange.progress.backend != served.targets[0].backend.name:
            # Counted for the first target; another one may be another server.
            return
        prompt, truth = exchange.prompt, served.truth
        found = truth.note(
            prompt.chat,
            counts,
            reported,
            served.window,
            may_be_cut=prompt.may_be_cut,
            teaches=prompt.dialect is CHAT,
        )
        about = {"request_id": exchange.id, "model": model, "backend": exchange.progress.backend}
        if found.truncated:
            metrics.silent_truncation(model)
            # The 1st, 2nd, 4th, 8th …: it may happen with every request.
            if truth.truncations.bit_count() == 1:
                log.warning(
                    "the upstream read %d prompt tokens of %d that were sent: it truncates silently (time %d)",
                    reported,
                    counts.tokens,
                    truth.truncations,
                    extra=about,
                )
        if found.drift_began:
            log.warning(
                "counts called exact differ from what the upstream reports (last: reported %d, counted %d)",
                reported,
                counts.tokens,
                extra=about,
            )
        elif found.drift_ended:
            log.info("counts are equal to what the upstream reports again", extra=about)
        if found.margin_rose:
            log.warning(
                "the upstream counts more than we do (%+d): %g %% of the window is kept free from now on",
                found.error,
                truth.margin * 100,
                extra=about,
            )
            metrics.count_margin(model, truth.margin)


def model_label(exchange: Exchange, metrics: Metrics) -> str:
    """The model's own name once an upstream has taken it, else the config's pattern for it.

    A client could invent names without end; one that an upstream answered is a real one.
    """
    if not exchange.attempts:
        return ""
    model = exchange.attempts[-1].model
    if model.name == model.entry or model.name in metrics.models:
        return model.name
    if exchange.progress.status and exchange.progress.status < 400:
        return metrics.models.label(model.name)
    return model.entry
