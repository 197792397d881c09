"""What a vLLM engine is started with: keys of the config → its flags, checked against its own list of them. Pure.

The keys have vLLM's own names where it has one (its documentation then serves both).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from backends.vllm.flags import EngineArguments

Shape: TypeAlias = Literal["value", "switch", "many", "json", "pairs", "only_if_true"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One key's flag. `older`: names that it had in earlier versions."""

    name: str
    shape: Shape = "value"
    older: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Switches without which it does nothing, or is refused."""


FLAGS: Mapping[str, Flag] = {
    "model": Flag("--model"),
    "served_model_name": Flag("--served-model-name", "many"),
    "revision": Flag("--revision"),
    "tokenizer": Flag("--tokenizer"),
    "trust_remote_code": Flag("--trust-remote-code", "only_if_true"),
    "chat_template": Flag("--chat-template"),
    "dtype": Flag("--dtype"),
    "quantization": Flag("--quantization"),
    "load_format": Flag("--load-format"),
    "model_loader_extra_config": Flag("--model-loader-extra-config", "json"),
    "max_model_len": Flag("--max-model-len"),
    "gpu_memory_utilization": Flag("--gpu-memory-utilization"),
    "kv_cache_dtype": Flag("--kv-cache-dtype"),
    "block_size": Flag("--block-size"),
    "enable_prefix_caching": Flag("--enable-prefix-caching", "switch"),
    "enable_chunked_prefill": Flag("--enable-chunked-prefill", "switch"),
    "max_num_seqs": Flag("--max-num-seqs"),
    "max_num_batched_tokens": Flag("--max-num-batched-tokens"),
    "tensor_parallel_size": Flag("--tensor-parallel-size"),
    "pipeline_parallel_size": Flag("--pipeline-parallel-size"),
    "data_parallel_size": Flag("--data-parallel-size"),
    "distributed_executor_backend": Flag("--distributed-executor-backend"),
    "enforce_eager": Flag("--enforce-eager", "only_if_true"),
    "cudagraph_capture_sizes": Flag("--cudagraph-capture-sizes", "many", older=("--cuda-graph-sizes",)),
    "optimization_level": Flag("--optimization-level", older=("-O",)),
    "compilation_config": Flag("--compilation-config", "json"),
    "speculative": Flag("--speculative-config", "json"),
    "enable_sleep_mode": Flag("--enable-sleep-mode", "only_if_true"),
    "tool_call_parser": Flag("--tool-call-parser", needs=("--enable-auto-tool-choice",)),
    "reasoning_parser": Flag("--reasoning-parser"),
    "lora_modules": Flag("--lora-modules", "pairs", needs=("--enable-lora",)),
    "max_loras": Flag("--max-loras", needs=("--enable-lora",)),
    "max_lora_rank": Flag("--max-lora-rank", needs=("--enable-lora",)),
}

OURS: Mapping[str, str] = {
    "--uds": "the engine listens where chatfuse looks for it",
    "--host": "the engine listens where chatfuse looks for it",
    "--port": "the engine listens where chatfuse looks for it: set port",
    "--api-key": "chatfuse makes a key of its own for it",
    "--root-path": "the engine listens where chatfuse looks for it",
    "--ssl-keyfile": "the engine is reached on this machine only",
    "--ssl-certfile": "the engine is reached on this machine only",
    "--headless": "a node without an API cannot be a backend",
    "--grpc": "a backend is spoken to over HTTP",
    "--config": "its keys would stand beside these: write them here",
    "--download-dir": "set cache_dir",
}
"""Flags that extra_args may not set, with the reason."""

QUIET = ("--disable-uvicorn-access-log",)
"""Set where the engine knows them: a line for each request, in a pipe that nobody reads."""

SPECULATIVE_KEYS: Mapping[str, str] = {
    "method": "method",
    "model": "model",
    "num_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "prompt_lookup_max",
    "prompt_lookup_min": "prompt_lookup_min",
    "draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "max_model_len": "max_model_len",
    "quantization": "quantization",
}
"""Ours → those of vLLM's SpeculativeConfig."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """All of one engine. `flags` holds what the config sets, by the keys of `FLAGS`."""

    flags: Mapping[str, Any]
    extra_args: Sequence[str] = ()
    command: Sequence[str] = ()
    """What runs the engine's Python."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Over the environment that it inherits. May hold keys."""
    cache_dir: Path | None = None
    port: int | None = None
    """On the loopback; None: a Unix socket."""
    preload: bool = True
    warm_prompts: Sequence[str] = ()
    start_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0

    @property
    def model(self) -> str:
        return str(self.flags["model"])

    @property
    def served_as(self) -> str:
        """A name under which the engine serves the model."""
        names = self.flags.get("served_model_name")
        return str(names[0]) if names else self.model


def argv(options: EngineOptions, known: EngineArguments) -> list[str]:
    """The engine's arguments, without where it listens."""
    out: list[str] = []
    needed: dict[str, None] = {}
    for key, value in options.flags.items():
        flag = FLAGS[key]
        name = spelling(flag, known)
        out += _words(name, flag.shape, value)
        needed.update(dict.fromkeys(flag.needs))
    out += [flag for flag in needed if flag not in options.extra_args]
    out += [flag for flag in QUIET if flag in known and flag not in options.extra_args]
    return [*out, *options.extra_args]


def _words(name: str, shape: Shape, value: Any) -> list[str]:
    if shape == "switch":
        return [name if value else f"--no-{name.removeprefix('--')}"]
    if shape == "only_if_true":
        return [name] if value else []
    if shape == "many":
        return [name, *map(str, value)]
    if shape == "pairs":
        return [name, *(f"{left}={right}" for left, right in value.items())]
    if shape == "json":
        return [name, json.dumps(value)]
    # With "=": a value may begin with a dash.
    return [f"{name}={value}"] if name.startswith("--") else [name, str(value)]


def spelling(flag: Flag, known: EngineArguments) -> str:
    """The name that this engine has for it; the newest one when it has none."""
    return next((name for name in (flag.name, *flag.older) if name in known), flag.name)


def speculative_config(keys: Mapping[str, Any]) -> dict[str, Any]:
    """`[backends.speculative]` as vLLM's SpeculativeConfig."""
    return {SPECULATIVE_KEYS[key]: value for key, value in keys.items() if value is not None}


def problems(options: EngineOptions, known: EngineArguments) -> list[tuple[str, str]]:
    """(key, problem) for every flag or value that this engine does not take."""
    out: list[tuple[str, str]] = []
    for key, value in options.flags.items():
        flag = FLAGS[key]
        name = spelling(flag, known)
        words = _words(name, flag.shape, value)
        if words and (missing := next((w for w in (name, *flag.needs) if w not in known), None)):
            out.append((key, _unknown(missing, known)))
            continue
        allowed = known.choices.get(name)
        if allowed is not None and flag.shape == "value" and str(value) not in allowed:
            out.append((key, _not_among(str(value), name, allowed, known)))
    for i, word in enumerate(options.extra_args):
        out += [(f"extra_args[{i}]", problem) for problem in _extra(word, known)]
    return out


def _extra(word: str, known: EngineArguments) -> list[str]:
    if not word.startswith("--"):
        return []
    name, _, value = word.partition("=")
    # vLLM reads --compilation-config.mode=3 as a key of that flag's JSON, and an underscore as a dash.
    name = name.split(".")[0].replace("_", "-")
    own = next((key for key, flag in FLAGS.items() if name in (flag.name, *flag.older)), None)
    if name in OURS:
        return [f"{name} cannot be set: {OURS[name]}"]
    if own is not None and "." not in word:
        return [f"{name} has a key of its own: {own}"]
    if name not in known:
        return [_unknown(name, known)]
    allowed = known.choices[name]
    if value and allowed is not None and value not in allowed:
        return [_not_among(value, name, allowed, known)]
    return []


def _unknown(flag: str, known: EngineArguments) -> str:
    near = known.near(flag)
    hint = f"; it has {', '.join(near)}" if near else ""
    return f"vLLM {known.version} has no {flag}{hint}"


def _not_among(value: str, flag: str, allowed: Sequence[str], known: EngineArguments) -> str:
    return f'"{value}" is not among what vLLM {known.version} takes for {flag}: {", ".join(allowed)}'
