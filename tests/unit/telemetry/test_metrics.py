"""The names, labels and buckets that dashboards are built on, and sums over processes."""

from __future__ import annotations

import json

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Telemetry
from proxy.telemetry.labels import OTHER, Bounded, client_ip
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.snapshot import Snapshot, SnapshotCollector


def exposed(metrics: Metrics) -> str:
    return prometheus_client.generate_latest(metrics.registry).decode()


def test_the_first_designs_metrics_have_their_exact_names_labels_and_buckets() -> None:
    metrics = Metrics(Telemetry(client_ip="full"))
    for status in ("ok", "tripped", "allowed"):
        metrics.fuse(status)
    metrics.measured("m", 600, 0.002)
    metrics.tripped("m", "/v1/chat/completions", "10.1.2.3")
    text = exposed(metrics)
    for line in (
        'llm_request_context_length_total{status="ok"} 1.0',
        'llm_request_context_length_total{status="tripped"} 1.0',
        'llm_request_context_length_total{status="allowed"} 1.0',
        'llm_context_length_histogram_bucket{le="128.0",model="m"} 0.0',
        'llm_context_length_histogram_bucket{le="512.0",model="m"} 0.0',
        'llm_context_length_histogram_bucket{le="2048.0",model="m"} 1.0',
        'llm_context_length_histogram_bucket{le="8192.0",model="m"} 1.0',
        'llm_context_length_histogram_bucket{le="+Inf",model="m"} 1.0',
        'llm_context_tripped_total{client_ip="10.1.2.3",model="m",route="/v1/chat/completions"} 1.0',
        'llm_context_length_seconds_count{model="m"} 1.0',
    ):
        assert line in text.splitlines()
    assert text.count("llm_context_length_histogram_bucket") == 5


@pytest.mark.parametrize(
    ("peer", "mode", "label"),
    [
        ("10.1.2.3", "full", "10.1.2.3"),
        ("10.1.2.3", "truncated", "10.1.2.0"),
        ("2001:db8:1:2::3", "truncated", "2001:db8:1::"),
        ("nonsense\n", "full", OTHER),
        ("", "truncated", OTHER),
    ],
)
def test_a_clients_address_as_a_label(peer: str, mode: str, label: str) -> None:
    assert client_ip(peer, mode) == label


def test_addresses_are_off_by_default_and_bounded_in_number() -> None:
    off = Metrics(Telemetry())
    off.tripped("m", "/r", "10.0.0.1")
    assert 'client_ip=""' in exposed(off)
    few = Metrics(Telemetry(client_ip="full", max_client_ips=2))
    for last in range(10):
        few.tripped("m", "/r", f"10.0.0.{last}")
    text = exposed(few)
    assert text.count("llm_context_tripped_total{") == 3
    assert 'llm_context_tripped_total{client_ip="other",model="m",route="/r"} 8.0' in text


@given(st.lists(st.text(max_size=300)))
def test_no_more_labels_than_the_limit_and_one(values: list[str]) -> None:
    bounded = Bounded(5)
    labels = {bounded.label(value) for value in values}
    assert len(labels - {OTHER}) <= 5
    assert all(bounded.label(value) == value for value in labels if value in bounded)


def test_snapshots_cross_a_pipe_and_add_up() -> None:
    one, two = Metrics(Telemetry()), Metrics(Telemetry())
    for metrics, tokens in ((one, 100), (two, 3000)):
        metrics.measured("m", tokens, 0.001)
        metrics.tokens("m", "prompt", tokens)
        metrics.inflight("b", 2)
    one.backend_state("b", True)
    two.backend_state("b", False)
    total = Snapshot()
    for metrics in (one, two):
        total.add(Snapshot.restore(json.loads(json.dumps(Snapshot.take(metrics.registry).dump()))))
    registry = prometheus_client.CollectorRegistry()
    registry.register(SnapshotCollector(total))
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    for line in (
        'chatfuse_tokens_total{kind="prompt",model="m"} 3100.0',
        'llm_context_length_histogram_bucket{le="128.0",model="m"} 1.0',
        'llm_context_length_histogram_count{model="m"} 2.0',
        'chatfuse_inflight{backend="b"} 4.0',
        'chatfuse_backend_state{backend="b"} 0.0',
    ):
        assert line in lines


def test_a_dead_process_leaves_its_counts_and_not_its_state() -> None:
    metrics = Metrics(Telemetry())
    metrics.tokens("m", "prompt", 5)
    metrics.inflight("b", 1)
    rest = Snapshot.take(metrics.registry).without_gauges()
    assert ("chatfuse_tokens_total", (("kind", "prompt"), ("model", "m"))) in rest.samples["chatfuse_tokens"]
    assert "chatfuse_inflight" not in rest.samples
