"""Metrics across processes: a worker's registry as plain data, and the sum of many of them.

prometheus_client's multiprocess mode writes a memory-mapped file at each update, which costs more than a
request can afford. Here a worker updates in process, and is asked at scrape time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from proxy.telemetry.metrics import KV_GAUGES

SampleKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
ONE_STANDS_FOR_ALL: Mapping[str, Callable[[float, float], float]] = {
    "chatfuse_backend_state": min,  # a backend that one worker cannot reach is not well
    "chatfuse_count_margin_ratio": max,
    # Each worker asks the engine itself.
    **dict.fromkeys((f"chatfuse_kv_{name}" for name in KV_GAUGES), max),
}
"""Gauges that are not summed over processes."""


class Snapshot:
    """The values of one registry, or the sum of several. Plain data, so that it crosses a pipe as JSON."""

    def __init__(self) -> None:
        self.families: dict[str, tuple[str, str]] = {}
        """name → (type, help)"""
        self.samples: dict[str, dict[SampleKey, float]] = {}

    @classmethod
    def take(cls, registry: CollectorRegistry) -> Snapshot:
        snapshot = cls()
        for family in registry.collect():
            snapshot.families[family.name] = (family.type, family.documentation)
            snapshot.samples[family.name] = {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in family.samples
            }
        return snapshot

    def dump(self) -> list[object]:
        return [
            [
                name,
                *self.families[name],
                [[sample, list(labels), value] for (sample, labels), value in values.items()],
            ]
            for name, values in self.samples.items()
        ]

    @classmethod
    def restore(cls, dumped: Iterable[list[object]]) -> Snapshot:
        snapshot = cls()
        for name, kind, text, samples in dumped:
            snapshot.families[str(name)] = (str(kind), str(text))
            snapshot.samples[str(name)] = {
                (sample, tuple((k, v) for k, v in labels)): value
                for sample, labels, value in samples  # type: ignore[attr-defined]
            }
        return snapshot

    def add(self, other: Snapshot) -> None:
        """Sum another process's values into this one."""
        for name, values in other.samples.items():
            self.families.setdefault(name, other.families[name])
            own = self.samples.setdefault(name, {})
            for key, value in values.items():
                if name in ONE_STANDS_FOR_ALL:
                    own[key] = ONE_STANDS_FOR_ALL[name](own.get(key, value), value)
                else:
                    own[key] = own.get(key, 0.0) + value

    def without_gauges(self) -> Snapshot:
        """What stays true of a process that has ended: its counts, not its state."""
        rest = Snapshot()
        for name, (kind, text) in self.families.items():
            if kind != "gauge":
                rest.families[name] = (kind, text)
                rest.samples[name] = dict(self.samples[name])
        return rest


class SnapshotCollector(Collector):
    """Exposes a snapshot through prometheus_client's own exposition."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for name, (kind, text) in self._snapshot.families.items():
            family = Metric(name, text, kind)
            for (sample, labels), value in self._snapshot.samples[name].items():
                family.add_sample(sample, dict(labels), value)
            yield family
