"""The alert rules speak of metrics that there are, with labels that they have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Telemetry
from proxy.telemetry.metrics import Metrics

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alerts.yml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count"), "gauge": ("",)}


def exposed() -> set[str]:
    return {
        family.name + suffix
        for family in Metrics(Telemetry()).registry.collect()
        for suffix in SUFFIXES[family.type]
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_names_metrics_that_are_exposed_and_says_what_to_do(rule: dict[str, Any]) -> None:
    names = set(re.findall(r"\b(?:chatfuse|llm)_\w+", rule["expr"]))
    assert names
    assert names <= exposed()
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_buckets_that_the_rules_ask_for_are_there() -> None:
    metrics = Metrics(Telemetry())
    metrics.count_error("m", 0)
    bounds = {
        (sample.name, sample.labels["le"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if "le" in sample.labels
    }
    for rule in RULES:
        for name, bound in re.findall(r'(\w+_bucket)\{le="([^"]+)"\}', rule["expr"]):
            assert (name, bound) in bounds
