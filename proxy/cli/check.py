"""`chatfuse check`: validate the config and its surroundings; every error with its key."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from proxy.app import Parts, needed_encodings, template_counter
from proxy.cli.terminal import Style, problem_lines
from proxy.config import Config, ConfigError
from proxy.config_checks import warnings
from proxy.config_source import Source
from proxy.engines import EngineFailed, embedded_installed, weights_of
from proxy.telemetry.metrics import Metrics
from proxy.tokens import encodings
from proxy.worker import tls_context


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
    if not options.quiet:
        print(resolved(settings))
    style = Style(sys.stderr)
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
