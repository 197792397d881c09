"""vLLM's `/metrics` → `KvState`. Pure.

Names: vLLM's "Production metrics" page; in 0.10 and before `gpu_cache_usage_perc` and `gpu_prefix_cache_*`, and
before that the hit rate alone. What an engine does not say is None, never 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from backends.kv_state import KvState

_SAMPLE = re.compile(r"^(vllm:[\w:]+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total",
         "vllm:gpu_prefix_cache_hits")  # fmt: skip
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries")  # fmt: skip
_CONFIG = "vllm:cache_config_info"

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


def parse(text: str) -> Samples:
    """vLLM's own samples of Prometheus' text format, by name. A line that cannot be read is left out."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1].endswith("_bucket"):
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if value == value:  # not NaN, which stands for unknown
            found[sample[1]].append((dict(_LABEL.findall(sample[2] or "")), value))
    return found


def read(text: str) -> KvState:
    """The state by the text of `/metrics`."""
    samples = parse(text)
    used = _values(samples, _USED)
    used_ratio = max(used) if used else None
    running = _total(samples, _RUNNING)
    blocks, block_tokens = _cache_config(samples)
    unused = None
    if used_ratio is not None and running is not None and blocks is not None and block_tokens is not None:
        unused = expected_waste(running, used_ratio * blocks, block_tokens)
    return KvState(
        used_ratio=used_ratio,
        blocks=blocks,
        block_tokens=block_tokens,
        running=running,
        waiting=_total(samples, _WAITING),
        preemptions=_total(samples, _PREEMPTIONS),
        prefix_hit_tokens=_total(samples, _HITS),
        prefix_query_tokens=_total(samples, _QUERIES),
        unused_ratio=unused,
    )


def expected_waste(running: int, used_blocks: float, block_tokens: int) -> float:
    """The share of taken KV memory that lies unused in last blocks, where the requests' lengths are not known.

    A length is as likely to end at one place of its last block as at any other, so (block - 1) / 2 tokens on average.
    """
    if used_blocks <= 0:
        return 0.0
    return min(1.0, running * (block_tokens - 1) / 2 / (used_blocks * block_tokens))


def last_block_waste(lengths_tokens: Iterable[int], block_tokens: int) -> float:
    """The same where they are known: prompt and completion tokens so far of each request that runs."""
    used = taken = 0
    for length in lengths_tokens:
        used += length
        taken += -(-length // block_tokens) * block_tokens
    return 1.0 - used / taken if taken else 0.0


def _values(samples: Samples, names: Sequence[str]) -> list[float]:
    """The values of the first name that is there: an engine in between two versions has both."""
    for name in names:
        if name in samples:
            return [value for _, value in samples[name]]
    return []


def _total(samples: Samples, names: Sequence[str]) -> int | None:
    values = _values(samples, names)
    return int(sum(values)) if values else None


def _cache_config(samples: Samples) -> tuple[int | None, int | None]:
    """(blocks, tokens of a block), of all ranks together."""
    blocks, block_tokens = None, None
    for labels, _ in samples.get(_CONFIG, ()):
        number = _whole(labels.get("num_gpu_blocks")) or _whole(labels.get("num_cpu_blocks"))
        blocks = number + (blocks or 0) if number is not None else blocks
        block_tokens = _whole(labels.get("block_size")) or block_tokens
    return blocks, block_tokens


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
