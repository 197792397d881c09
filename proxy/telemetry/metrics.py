"""Every Prometheus metric, in one place. Workers update children that are bound once for each label set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from backends.kv_state import KvState
from proxy.config import Telemetry
from proxy.telemetry.labels import Bounded, client_ip

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

PROMPT_TOKENS = (128, 512, 2048, 8192)
SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TTFT_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""2.0 is a bound of its own: a first token later than that is called slow."""
CHUNK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
COUNT_ERROR = (-1000, -100, -10, -1, 0, 1, 10, 100, 1000)

KV_GAUGES = {
    "used_ratio": "Share of an engine's KV cache that is taken; of its fullest rank.",
    "unused_ratio": "Share of the taken KV memory that lies unused in last blocks, as it is to be expected.",
    "blocks": "Blocks of an engine's KV cache.",
    "block_tokens": "Tokens of one block.",
    "running": "Requests that the engine works on.",
    "waiting": "Requests that wait inside the engine.",
    "preemptions": "Requests put aside for want of KV memory since the engine was started.",
    "prefix_hit_tokens": "Prompt tokens found in the engine's prefix cache since it was started.",
    "prefix_query_tokens": "Prompt tokens looked for in the engine's prefix cache since it was started.",
}
"""By the fields of `backends.kv_state.KvState`."""

T = TypeVar("T")


class Metrics:
    """The metrics of one process. Label values are bounded in number; beyond that they read `other`."""

    def __init__(self, settings: Telemetry) -> None:
        self.registry = registry = CollectorRegistry()
        self._children: dict[tuple[object, ...], object] = {}
        self._ip_mode = settings.client_ip
        self._ips = Bounded(settings.max_client_ips)
        self.models = Bounded(settings.max_models)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._context = counter(
            "llm_request_context_length", "Requests by what the fuse said (ok, tripped, allowed).", "status"
        )
        self._length = histogram(
            "llm_context_length_histogram", "Prompt tokens as the client sent them.", PROMPT_TOKENS, "model"
        )
        self._tripped = counter(
            "llm_context_tripped", "Requests over the fuse's threshold.", "model", "route", "client_ip"
        )
        self._measure = histogram(
            "llm_context_length_seconds", "Time to measure a prompt.", SHORT_SECONDS, "model"
        )
        self._requests = counter(
            "chatfuse_requests", "Requests by their single outcome.", "model", "backend", "outcome"
        )
        self._overhead = histogram(
            "chatfuse_overhead_seconds", "Time spent in each stage.", SHORT_SECONDS, "stage"
        )
        self._ttft = histogram(
            "chatfuse_ttft_seconds",
            "From a request's arrival to the first byte of the upstream's answer.",
            TTFT_SECONDS,
            "model",
            "backend",
        )
        self._chunks = histogram(
            "chatfuse_inter_chunk_seconds", "Mean time between two chunks of a stream.", CHUNK_SECONDS
        )
        self._tokens = counter(
            "chatfuse_tokens",
            "Tokens: prompt_original as counted, prompt_sent as counted, prompt, cached and completion as reported.",
            "model",
            "kind",
        )
        self._count_error = histogram(
            "chatfuse_count_error_tokens",
            "Prompt tokens that the upstream reported, less our count.",
            COUNT_ERROR,
            "model",
        )
        self._truncated = counter(
            "chatfuse_silent_truncation",
            "Replies whose upstream read far fewer tokens than were sent.",
            "model",
        )
        self._margin = Gauge(
            "chatfuse_count_margin_ratio",
            "Share of the window that is kept free for errors of the count.",
            ["model"],
            registry=registry,
        )
        self._trimmed = counter("chatfuse_trimmed_tokens", "Prompt tokens that trimming took out.", "model")
        self._cuts = counter("chatfuse_cuts", "Requests whose history was cut.", "model")
        self._summaries = counter("chatfuse_summaries", "Summaries by what became of them.", "outcome")
        self._prewarms = counter(
            "chatfuse_prewarms",
            "Prompts sent ahead of the turn that cuts, by what became of them.",
            "outcome",
        )
        self._clamped = counter(
            "chatfuse_max_tokens_clamped", "Completion caps that were lowered.", "model", "reason"
        )
        self._inflight = Gauge(
            "chatfuse_inflight", "Requests that are with a backend now.", ["backend"], registry=registry
        )
        self._state = Gauge(
            "chatfuse_backend_state",
            "1: the backend can serve, 0: it cannot.",
            ["backend"],
            registry=registry,
        )

        self._kv = {
            name: Gauge(f"chatfuse_kv_{name}", text, ["source"], registry=registry)
            for name, text in KV_GAUGES.items()
        }
        self._kv_shown: set[tuple[str, str]] = set()

    def kv(self, source: str, state: KvState | None) -> None:
        """What an engine does not say is not exposed: 0 would be a statement."""
        for name, gauge in self._kv.items():
            value = getattr(state, name) if state is not None else None
            if value is not None:
                gauge.labels(source).set(value)
                self._kv_shown.add((name, source))
            elif (name, source) in self._kv_shown:
                gauge.remove(source)
                self._kv_shown.discard((name, source))

    def _child(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = make()
        return child  # type: ignore[return-value]

    def fuse(self, status: str) -> None:
        self._child(("context", status), lambda: self._context.labels(status)).inc()

    def measured(self, model: str, tokens: int, seconds: float) -> None:
        self._child(("length", model), lambda: self._length.labels(model)).observe(tokens)
        self._child(("measure", model), lambda: self._measure.labels(model)).observe(seconds)

    def tripped(self, model: str, route: str, peer: str) -> None:
        ip = "" if self._ip_mode == "off" else self._ips.label(client_ip(peer, self._ip_mode))
        self._child(("tripped", model, route, ip), lambda: self._tripped.labels(model, route, ip)).inc()

    def request(self, model: str, backend: str, outcome: str) -> None:
        self._child(
            ("requests", model, backend, outcome), lambda: self._requests.labels(model, backend, outcome)
        ).inc()

    def overhead(self, stage: str, seconds: float) -> None:
        self._child(("overhead", stage), lambda: self._overhead.labels(stage)).observe(seconds)

    def first_byte(self, model: str, backend: str, seconds: float) -> None:
        self._child(("ttft", model, backend), lambda: self._ttft.labels(model, backend)).observe(seconds)

    def inter_chunk(self, seconds: float) -> None:
        self._chunks.observe(seconds)

    def tokens(self, model: str, kind: str, number: int) -> None:
        self._child(("tokens", model, kind), lambda: self._tokens.labels(model, kind)).inc(number)

    def count_error(self, model: str, tokens: int) -> None:
        self._child(("error", model), lambda: self._count_error.labels(model)).observe(tokens)

    def silent_truncation(self, model: str) -> None:
        self._child(("truncated", model), lambda: self._truncated.labels(model)).inc()

    def count_margin(self, model: str, share: float) -> None:
        self._child(("margin", model), lambda: self._margin.labels(model)).set(share)

    def cut(self, model: str, trimmed_tokens: int) -> None:
        self._child(("cuts", model), lambda: self._cuts.labels(model)).inc()
        self._child(("trimmed", model), lambda: self._trimmed.labels(model)).inc(trimmed_tokens)

    def summary(self, outcome: str) -> None:
        self._child(("summaries", outcome), lambda: self._summaries.labels(outcome)).inc()

    def prewarm(self, outcome: str) -> None:
        self._child(("prewarms", outcome), lambda: self._prewarms.labels(outcome)).inc()

    def clamped(self, model: str, reason: str) -> None:
        self._child(("clamped", model, reason), lambda: self._clamped.labels(model, reason)).inc()

    def inflight(self, backend: str, change: int) -> None:
        self._child(("inflight", backend), lambda: self._inflight.labels(backend)).inc(change)

    def backend_state(self, backend: str, ready: bool) -> None:
        self._child(("state", backend), lambda: self._state.labels(backend)).set(1 if ready else 0)
