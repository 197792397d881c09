"""The `chatfuse` command: one file for each of its own commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from proxy import __version__
from proxy.cli import check, count, serve
from proxy.cli.terminal import Style, problem_lines
from proxy.config import ConfigError

EPILOG = """\
examples:
  chatfuse serve                              OpenAI with the client's own key, and the embedded model
  chatfuse serve --config chatfuse.toml       what the file says; it is loaded again when it changes
  chatfuse check --config chatfuse.toml       every error in it, each with its key
  chatfuse count request.json --model gpt-4o  tokens by message, what would be trimmed, the fuse's verdict

environment: CHATFUSE_CONFIG, CHATFUSE_HOST, CHATFUSE_PORT, CHATFUSE_WORKERS, OPENAI_API_KEY, OPENAI_BASE_URL
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chatfuse",
        description="A reverse proxy that keeps chat APIs fast and inside their limits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"chatfuse {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (serve, check, count):
        module.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all well, 1 it failed (the last line says why), 2 wrong usage, 130 interrupted."""
    options = build_parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except ConfigError as error:
        print("\n".join(problem_lines(error.problems, Style(sys.stderr))), file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    return code
