"""`chatfuse check`: validate the config and its surroundings; every error with its key."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from backends.vllm.cachedir import GIB
from backends.vllm.preflight import Impossible, Prepared
from proxy.app import Parts, needed_encodings, template_counter
from proxy.cli.terminal import Style, problem_lines
from proxy.config import Config, ConfigError
from proxy.config_checks import warnings
from proxy.config_source import Source
from proxy.engines import EngineFailed, embedded_installed, look_at_vllm, weights_of
from proxy.history.outlook import TYPICAL_TURN_TOKENS, outlook
from proxy.telemetry.metrics import Metrics
from proxy.tokens import encodings
from proxy.worker import tls_context

UNKNOWN_BUDGET = 100_000
"""Where a share is all that can be told, turns are small beside it."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="validate a config",
        description="Validate the config and what it needs, and print it as resolved, with secrets masked. "
        "Exit code 1 on any error.",
    )
    parser.add_argument(
        "--config", metavar="F", help="a TOML file (default: CHATFUSE_CONFIG, else the defaults)"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="errors and warnings only, not the config itself"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    source = Source.named(options.config, os.environ, embedded=embedded_installed())
    settings = source.parse(source.text())
    style = Style(sys.stderr)
    if not options.quiet:
        print(resolved(settings))
        for line in outlooks(settings):
            print(line, file=sys.stderr)
    for key, advice in warnings(settings):
        print(f"{style.warn('warning')} {style.bold(key)}: {advice}", file=sys.stderr)
    problems = surroundings(settings)
    for line in problem_lines(problems, style):
        print(line, file=sys.stderr)
    if problems:
        return 1
    print(style.good("ok") + f": {source.path or 'the defaults'}", file=sys.stderr)
    return 0


def resolved(settings: Config) -> str:
    """The whole config with every default, as JSON. Secrets are masked by their type."""
    return json.dumps(settings.model_dump(mode="json"), indent=2)


def outlooks(settings: Config) -> list[str]:
    """For each model that is trimmed: what its low-water mark means over a long conversation."""
    lines = []
    for model in settings.models:
        context = settings.context.overridden(model.context)
        if context.strategy == "keep":
            continue
        budget = context.budget(None if model.window == "auto" else model.window)
        seen = outlook(budget or UNKNOWN_BUDGET, context.low_water)
        share = seen.mean_tokens / (budget or UNKNOWN_BUDGET)
        if budget is None:
            lines.append(
                f"{model.name}: on average about {share:.0%} of the budget is sent, which is known with the "
                f"server's window; the cut moves each time that {1 - context.low_water:.0%} of it is new"
            )
        else:
            lines.append(
                f"{model.name}: of {budget:,} tokens about {seen.mean_tokens:,} ({share:.0%}) are sent on average, "
                f"{seen.least_tokens:,} right after a cut; it moves every {seen.every_tokens:,} tokens, which are "
                f"{seen.every_turns:.0f} turns of {TYPICAL_TURN_TOKENS}"
            )
    return lines


def vllm_lines(name: str, prepared: Prepared) -> list[str]:
    """What an engine would be started with."""
    weights = prepared.weights
    lines = [
        f"backend {name}: vLLM {prepared.version}, {len(weights.files)} files of weights, "
        f"{weights.size_bytes / GIB:.1f} GiB, {'all models are here' if prepared.offline else 'the hub is asked'}"
    ]
    lines += [f"  {variable:<24}{folder}" for variable, folder in prepared.caches.folders.items()]
    return [*lines, *(f"  warning: {warning}" for warning in prepared.warnings)]


def surroundings(settings: Config) -> list[tuple[str, str]]:
    """What the config needs and does not find: files, engines, tokenizers."""
    problems: list[tuple[str, str]] = []
    if settings.server.tls is not None:
        try:
            tls_context(settings.server)
        except ConfigError as error:
            problems += error.problems
    for i, backend in enumerate(settings.backends):
        if backend.kind == "embedded":
            try:
                weights_of(backend)
            except EngineFailed as error:
                problems.append((f"backends[{i}]", str(error)))
        elif backend.kind == "vllm" and backend.is_ours:
            try:
                prepared = look_at_vllm(settings, backend)
            except Impossible as impossible:
                problems += [(f"backends[{i}].{key}", problem) for key, problem in impossible.problems]
            else:
                for line in vllm_lines(backend.name, prepared):
                    print(line, file=sys.stderr)
    parts = Parts(Metrics(settings.telemetry))
    for i, model in enumerate(settings.models):
        if model.tokenizer_files is not None:
            try:
                template_counter(model, parts)
            except ValueError as error:
                problems.append((f"models[{i}].tokenizer", str(error)))
    parts.close()
    for name in needed_encodings(settings):
        try:
            encodings.encoding(name)
        except (OSError, ValueError) as error:
            problems.append(("models", f"the encoding {name} cannot be loaded: {error}"))
    return problems
