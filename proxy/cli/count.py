"""`chatfuse count`: how long a request is, by message, and what the proxy would do with it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy import app
from proxy.cli.terminal import Style, table
from proxy.config import Config
from proxy.config_source import Source
from proxy.dialects import body as bodies
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Dialect, Prompt
from proxy.dialects.responses import RESPONSES
from proxy.engines import EngineFailed, Engines, embedded_installed
from proxy.errors import InvalidRequest, ProxyError
from proxy.exchange import ANONYMOUS, Exchange
from proxy.handlers.explain import explain
from proxy.routing import names
from proxy.stages.identify import limit
from proxy.telemetry.metrics import Metrics
from proxy.tokens.counts import Counter
from proxy.tokens.ratio import remarks

_DIALECTS: Mapping[str, Dialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "count",
        help="count a request's tokens",
        description="Count a request's body, or plain text, with the model's own tokenizer.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="a request body or text; - is stdin"
    )
    parser.add_argument("--model", metavar="M", help="the model (default: the one that the body names)")
    parser.add_argument(
        "--config", metavar="F", help="a TOML file (default: CHATFUSE_CONFIG, else the defaults)"
    )
    parser.add_argument(
        "--dialect",
        choices=list(_DIALECTS),
        help="the API that the body is for (default: told by its messages, prompt or input)",
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    style = Style(sys.stderr)
    try:
        raw = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        print(f"{style.bad('error')} {options.file}: {error.strerror}", file=sys.stderr)
        return 1
    source = Source.named(options.config, os.environ, embedded=embedded_installed())
    settings = source.parse(source.text())
    try:
        prompt = as_prompt(raw, options.model, options.dialect)
        result = asyncio.run(counted(settings, prompt))
    except ProxyError as error:
        print(f"{style.bad('error')} {error.message}", file=sys.stderr)
        return 1
    except EngineFailed as error:
        print(f"{style.bad('error')} {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(report(result, Style(sys.stdout)))
    return 0


def as_prompt(raw: bytes, model: str | None, dialect: str | None = None) -> Prompt:
    """A body as it is, with the model replaced if one is given; plain text is one user message.

    Raises InvalidRequest, also for what looks like a body and is none: it would be counted as something else.
    """
    if not raw.strip():
        raise InvalidRequest("there is nothing to count")
    if raw.lstrip()[:1] == b"{":
        fields = bodies.parse(raw)
        spoken = _DIALECTS[dialect] if dialect else _told(fields)
    else:
        spoken = CHAT
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"neither a request nor UTF-8 text (byte {error.start})") from None
        fields = {"messages": [{"role": "user", "content": text}]}
        raw = json.dumps(fields).encode()
    if model is not None:
        raw = json.dumps({**fields, "model": model}).encode()
    elif "model" not in fields:
        raise InvalidRequest("no model is named: say which with --model")
    return spoken.parse(raw)


def _told(fields: Mapping[str, Any]) -> Dialect:
    """The API of a body, where its fields tell it; Anthropic's messages look like a chat."""
    for name, dialect in (("messages", CHAT), ("prompt", COMPLETIONS), ("input", RESPONSES)):
        if name in fields:
            return dialect
    raise InvalidRequest("the body has no messages, no prompt and no input: nothing that can be counted")


async def counted(settings: Config, prompt: Prompt) -> dict[str, Any]:
    """What the stages decide, as `/chatfuse/explain` gives it. Starts the embedded engine if it must count.

    Raises ProxyError, EngineFailed.
    """
    engines = Engines(used_by(settings, prompt.model))
    parts = app.Parts(Metrics(settings.telemetry))
    try:
        endpoints = await engines.start(lambda _: None)
        settings = used_by(settings, prompt.model)
        runtime = app.open_runtime(settings, parts, endpoints)
        try:
            exchange = Exchange("count", prompt.dialect.path, (), "", 0.0)
            exchange.prompt = prompt
            exchange.caller = ANONYMOUS
            exchange.candidates = runtime.catalog.find(prompt.model, "", None)
            if not exchange.candidates:
                raise ProxyError(f"the model {prompt.model!r} is not in the config")
            exchange.limit = limit(
                settings.fuse,
                route=settings.fuse.routes.get(exchange.path),
                model=exchange.candidates[0].fuse,
                caller=None,
                allowed=False,
            )
            attempt = exchange.attempt(exchange.candidates[0])
            refusal: ProxyError | None = None
            try:
                await runtime.fitting.run(attempt)
            except ProxyError as error:
                refusal = error
            return await remarked(await explain(attempt, refusal), attempt.model.counter)
        finally:
            await app.close_runtime(runtime)
    finally:
        parts.close()
        await engines.stop()


async def remarked(result: dict[str, Any], counter: Counter) -> dict[str, Any]:
    """With a `remark` at each message whose tokens nobody would guess from its length."""
    messages = result.get("messages", [])
    said = await remarks(counter, [(message["characters"], message["tokens"]) for message in messages])
    told = [{**message, "remark": remark} for message, remark in zip(messages, said, strict=True)]
    return {**result, "messages": told}


def used_by(settings: Config, model: str) -> Config:
    """The config without engines that this model does not need, so that none is started in vain."""
    served = names.find(settings.models, model)
    if served is None:
        raise ProxyError(f"the model {model!r} is not in the config")
    needed = {target.backend for target in served.targets}
    return settings.model_copy(
        update={
            "models": (served.model_copy(update={"fallbacks": ()}),),
            "backends": tuple(backend for backend in settings.backends if backend.name in needed),
        }
    )


def report(result: dict[str, Any], style: Style) -> str:
    window = result["window"]
    rows = [["message", "role", "tokens", "characters", "tokens/char", "of window"]]
    for message in result["messages"]:
        tokens, characters = message["tokens"], message["characters"]
        if tokens is None:
            # Counting stopped at the fuse, before the messages were told apart.
            rows.append([str(message["index"]), str(message["role"]), "", f"{characters:,}", "", ""])
            continue
        rows.append(
            [
                str(message["index"]),
                str(message["role"]),
                f"{tokens:,}",
                f"{characters:,}",
                f"{tokens / characters:.2f}" if characters else "",
                f"{tokens / window:.1%}" if window else "",
            ]
        )
    exact = "exactly " if result["exact"] else "at least " if not result["complete"] else "about "
    lines = [table(rows, style), ""] if len(rows) > 1 else []
    lines.append(
        f"prompt     {exact}{style.bold(format(result['tokens'], ','))} tokens for {result['model']}"
    )
    lines += [f"           {style.warn('not sure')}: {reason}" for reason in result["unsure"]]
    lines += [
        f"           {style.warn('unusual')}: message {message['index']}: {message['remark']}"
        for message in result["messages"]
        if message.get("remark")
    ]
    lines.append(
        f"window     {window:,} tokens, {result['tokens'] / window:.1%} used"
        if window
        else "window     not known: set window for this model"
    )
    cut = result.get("cut")
    if cut is not None and cut["dropped_messages"]:
        lines.append(
            f"trim       {cut['dropped_turns']} turns ({cut['dropped_messages']} messages, "
            f"{cut['trimmed_tokens']:,} tokens) go; message {cut['first_kept']} is the first kept; "
            f"{cut['tokens_in']:,} tokens are sent"
        )
    elif cut is not None:
        lines.append(f"trim       nothing (strategy {result['strategy']})")
    capped = result.get("max_tokens")
    if capped is not None and capped["value"] is not None:
        why = f", lowered by the {capped['clamped']}" if capped["clamped"] else ""
        lines.append(f"cap        {capped['name']} = {capped['value']:,}{why}")
    fuse = result["fuse"]
    if fuse["max_context_tokens"] is None:
        lines.append("fuse       off")
    else:
        mark = style.good if fuse["verdict"] == "ok" else style.bad
        lines.append(
            f"fuse       {mark(str(fuse['verdict']))} at {fuse['max_context_tokens']:,} tokens ({fuse['mode']})"
        )
    if result["refused"] is not None:
        lines.append(
            f"refused    {style.bad(str(result['refused']['status']))} {result['refused']['message']}"
        )
    return "\n".join(lines)
