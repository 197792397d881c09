"""What one section says of another: names that must exist, combinations that would be unsafe. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter

from proxy.config import BackendSection, Config, Context
from proxy.routing.names import find, matches

ENCODINGS = ("o200k_base", "o200k_harmony", "cl100k_base", "p50k_base", "p50k_edit", "r50k_base", "gpt2")


def cross_check(config: Config) -> list[tuple[str, str]]:
    """(key, problem) for everything that makes this config impossible to serve, or unsafe."""
    return [
        *_names(config),
        *_models(config),
        *_callers(config),
        *_listeners(config),
        *_routes(config),
        *_caps(config),
    ]


def _caps(config: Config) -> list[tuple[str, str]]:
    return [
        (f"{key}.min_tokens", f"{cap.min_tokens} is more than max_tokens, {cap.max_tokens}")
        for key, cap in (
            ("cap", config.cap),
            *((f"models[{i}].cap", m.cap) for i, m in enumerate(config.models)),
            *((f"callers[{i}].cap", c.cap) for i, c in enumerate(config.callers)),
        )
        if cap is not None and cap.min_tokens and cap.max_tokens and cap.min_tokens > cap.max_tokens
    ]


COUNTED_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Paths whose prompts are counted; elsewhere a fuse would do nothing."""


def _routes(config: Config) -> list[tuple[str, str]]:
    return [
        (f'fuse.routes."{route}"', f"is not counted; the fuse works on {', '.join(COUNTED_ROUTES)}")
        for route in config.fuse.routes
        if route not in COUNTED_ROUTES
    ]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(config: Config) -> list[tuple[str, str]]:
    problems = []
    for key, names in (
        ("backends", [b.name for b in config.backends]),
        ("models", [m.name for m in config.models]),
        ("callers", [c.name for c in config.callers]),
    ):
        problems += [
            (key, f'the name "{name}" is used {n} times') for name, n in Counter(names).items() if n > 1
        ]
    if sum(b.kind == "embedded" for b in config.backends) > 1:
        problems.append(("backends", 'there can be one backend of kind "embedded" only'))
    passthrough = config.server.passthrough_backend
    if passthrough not in ("auto", "none") and config.backend(passthrough) is None:
        problems.append(("server.passthrough_backend", f'there is no backend "{passthrough}"'))
    for i, entry in enumerate(config.server.passthrough_paths):
        method, _, path = entry.partition(" ")
        if not method.isupper() or not path.startswith("/v1/"):
            problems.append((f"server.passthrough_paths[{i}]", 'must be like "GET /v1/files/*"'))
    return problems


def _models(config: Config) -> list[tuple[str, str]]:
    problems: list[tuple[str, str]] = []
    if not config.backends:
        problems.append(("backends", "models are given, but no backend"))
    if not config.models:
        problems.append(("models", "backends are given, but no model"))
    names = {m.name for m in config.models}
    for i, model in enumerate(config.models):
        key = f"models[{i}]"
        silent = True  # no target tells its window: OpenAI's own API does not
        for j, target in enumerate(model.targets):
            backend = config.backend(target.backend)
            if backend is None:
                problems.append((f"{key}.targets[{j}].backend", f'there is no backend "{target.backend}"'))
            else:
                silent = silent and backend.kind == "openai" and backend.is_openai
        for fallback in model.fallbacks:
            if fallback not in names:
                problems.append((f"{key}.fallbacks", f'there is no model "{fallback}"'))
            if fallback == model.name:
                problems.append((f"{key}.fallbacks", "a model cannot be its own fallback"))
            if "*" in fallback:
                problems.append((f"{key}.fallbacks", "a fallback must be a name without *"))
        files = model.tokenizer_files
        if files is not None and not files.exists():
            problems.append((f"{key}.tokenizer", f"there is nothing at {files}"))
        if files is None and model.tokenizer != "auto" and model.tokenizer not in ENCODINGS:
            known = ", ".join(ENCODINGS)
            problems.append(
                (f"{key}.tokenizer", f'must be "auto", the path of a model\'s files, or one of {known}')
            )
        if files is None and "chat_template" in model.model_fields_set:
            problems.append((f"{key}.chat_template", "is of use only when tokenizer is a path"))
        context = config.context.overridden(model.context)
        if context.strategy != "keep" and context.budget_tokens is None and model.window == "auto" and silent:
            problems.append(
                (
                    f"{key}.window",
                    f'strategy = "{context.strategy}" needs a window or context.budget_tokens: '
                    "OpenAI does not tell its own",
                )
            )
        problems += _summary(config, key, context)
    return problems


def _summary(config: Config, key: str, context: Context) -> list[tuple[str, str]]:
    where = f"{key}.context.summary.model"
    name = context.summary.model
    if name is None:
        return (
            []
            if context.strategy != "summarize"
            else [(where, 'strategy = "summarize" needs the model that writes the summaries')]
        )
    writer = find(config.models, name)
    if writer is None:
        return [(where, f'there is no model "{name}"')]
    problems = []
    for target in writer.targets:
        backend = config.backend(target.backend)
        if backend is not None and backend.kind != "embedded" and backend.auth == "client":
            problems.append(
                (
                    where,
                    f'"{name}" is on the backend "{backend.name}" with auth = "client": a client\'s key is not kept '
                    'after its request, so it needs auth = "config" or "none"',
                )
            )
    return problems


def _callers(config: Config) -> list[tuple[str, str]]:
    known = {caller.name for caller in config.callers}
    problems = [
        ("fuse.allow.callers", f'there is no caller "{name}"')
        for name in config.fuse.allow.callers
        if name not in known
    ]
    if not config.callers:
        return problems
    first: dict[str, str] = {}
    for i, caller in enumerate(config.callers):
        owner = first.setdefault(caller.key.get_secret_value(), caller.name)
        if owner != caller.name:
            problems.append((f"callers[{i}].key", f'is the key of "{owner}" too: whose request is it?'))
    return problems + [
        (
            f"backends[{i}].auth",
            'with [[callers]] the keys that clients send are ours: auth = "client" would give them to an upstream',
        )
        for i, backend in enumerate(config.backends)
        if backend.kind != "embedded" and backend.auth == "client"
    ]


def _listeners(config: Config) -> list[tuple[str, str]]:
    admin, server = config.admin, config.server
    problems = []
    if admin.enabled and not is_loopback(admin.host) and admin.token is None:
        problems.append(
            ("admin.token", f"is required when admin.host is {admin.host}: others can reach it there")
        )
    if admin.enabled and admin.port and (admin.host, admin.port) == (server.host, server.port):
        problems.append(("admin.port", f"is {admin.port}, the port that clients speak to"))
    return problems


def warnings(config: Config) -> list[tuple[str, str]]:
    """(key, advice) for what works, but may not be what was meant."""
    out: list[tuple[str, str]] = _never_used(config)
    open_to_all = not config.callers and not is_loopback(config.server.host)
    for i, backend in enumerate(config.backends):
        if open_to_all and backend.kind != "embedded" and backend.auth == "config":
            out.append(
                (
                    f"backends[{i}].auth",
                    f"anyone who reaches {config.server.host} is served on this key: name [[callers]]",
                )
            )
    for i, model in enumerate(config.models):
        fuse = (model.fuse and model.fuse.max_context_tokens) or config.fuse.max_context_tokens
        context = config.context.overridden(model.context)
        budget = context.budget(None if model.window == "auto" else model.window)
        if fuse is not None and budget is not None and context.strategy != "keep" and fuse <= budget:
            out.append(
                (
                    f"models[{i}].fuse" if model.fuse else "fuse.max_context_tokens",
                    f"{fuse} is not above the budget of {budget}: requests are refused before anything is trimmed",
                )
            )
    return out


def _never_used(config: Config) -> list[tuple[str, str]]:
    """Numbers that another number makes idle, names that nothing has."""
    out = []
    for i, model in enumerate(config.models):
        window = None if model.window == "auto" else model.window
        budget = (model.context and model.context.budget_tokens) or config.context.budget_tokens
        fuse = (model.fuse and model.fuse.max_context_tokens) or config.fuse.max_context_tokens
        context = config.context.overridden(model.context)
        if context.strategy == "keep" and context.squeeze.any:
            own = model.context is not None and model.context.squeeze is not None
            out.append(
                (
                    f"models[{i}].context.squeeze" if own else "context.squeeze",
                    f'does nothing for "{model.name}": strategy = "keep" sends everything on as it came',
                )
            )
        if window is not None and budget is not None and budget > window:
            out.append(
                (f"models[{i}].context.budget_tokens", f"{budget} is more than the window of {window}")
            )
        if window is not None and fuse is not None and fuse > window:
            out.append(
                (f"models[{i}].fuse", f"{fuse} is more than the window of {window}: it never trips before")
            )
    for i, caller in enumerate(config.callers):
        names = [model.name for model in config.models]
        out += [
            (f"callers[{i}].models", f'nobody serves "{wanted}"')
            for wanted in caller.models
            if "*" not in wanted and not any(matches(name, wanted) for name in names)
        ]
    return out


def needs_restart(old: Config, new: Config) -> list[str]:
    """Keys that differ and cannot change while running: sockets, processes, and what they were given."""
    keys = []
    for section, names in (
        ("server", ("host", "port", "workers", "tls")),
        ("admin", ("enabled", "host", "port", "token")),
        ("log", ("level", "format")),
        ("telemetry", ("client_ip", "max_client_ips", "max_models")),
    ):
        was, now = getattr(old, section), getattr(new, section)
        keys += [f"{section}.{name}" for name in names if getattr(was, name) != getattr(now, name)]
    for kind in ("embedded", "vllm"):
        engines = [
            [(b, served_names(config, b)) for b in config.backends if b.kind == kind and is_engine(b)]
            for config in (old, new)
        ]
        if engines[0] != engines[1]:
            keys.append(f'backends (kind = "{kind}")')
    return keys


def is_engine(backend: BackendSection) -> bool:
    """Whether chatfuse runs it itself."""
    return backend.kind == "embedded" or (backend.kind == "vllm" and backend.is_ours)


def served_names(config: Config, backend: BackendSection) -> tuple[str, ...]:
    """The names that an engine of kind vllm answers to: those given, else those that models of this config ask for."""
    if backend.kind != "vllm":
        return ()
    if backend.served_model_name:
        return backend.served_model_name
    asked = [
        target.model or model.name
        for model in config.models
        for target in model.targets
        if target.backend == backend.name
    ]
    return tuple(
        dict.fromkeys(name for name in asked if "*" not in name and name not in (backend.lora_modules or {}))
    )
