"""The composition root: a config becomes a runtime. Everything is put together here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from backends import registry
from backends.base import Backend, Target, Timeouts
from backends.embedded import Endpoint
from proxy import config, pipeline
from proxy.account import Account
from proxy.catalog import ModelCatalog
from proxy.handlers.outgoing import describe
from proxy.relay import Relay
from proxy.runtime import PassthroughRules, Runtime
from proxy.stages.identify import Catalog, Keys
from proxy.telemetry.metrics import Metrics
from proxy.tokens import encodings
from proxy.tokens.counts import Counter
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo
from proxy.tokens.oracle import Oracle, OracleCounter

REMEMBERED_TEXTS = 100_000
"""Texts whose token count is remembered: some thousand conversations."""


@dataclass(slots=True)
class Parts:
    """What a process keeps over all its configs: counts remembered, metrics counted, threads started."""

    metrics: Metrics
    memo: Memo = field(default_factory=lambda: Memo(REMEMBERED_TEXTS))
    pool: CountingPool = field(default_factory=CountingPool)
    templates: dict[str, Counter] = field(default_factory=dict)
    """Counters made of models' own files, by what the config says of them: a reload builds only what is new."""

    def close(self) -> None:
        self.pool.close()


@dataclass(frozen=True, slots=True)
class _Ports:
    keys: Keys
    catalog: Catalog


def open_runtime(settings: config.Config, parts: Parts, engines: Mapping[str, Endpoint]) -> Runtime:
    """Build everything for one config. Opens no connection, so it cannot fail on a network."""
    backends = {section.name: _backend(section, engines) for section in settings.backends}
    counters = _Counters(parts)
    catalog = ModelCatalog(settings, backends, counters.of)
    keys = Keys(settings.callers)
    passthrough = settings.passthrough()
    return Runtime(
        config=settings,
        backends=backends,
        catalog=catalog,
        keys=keys,
        admission=pipeline.admission(settings, _Ports(keys, catalog)),
        fitting=pipeline.fitting(settings),
        relay=Relay(settings.server.keepalive_comment_s, describe, parts.metrics.inflight),
        account=Account(parts.metrics),
        metrics=parts.metrics,
        passthrough=PassthroughRules(
            backends[passthrough] if passthrough is not None else None, settings.server.passthrough_paths
        ),
    )


async def close_runtime(runtime: Runtime) -> None:
    for backend in runtime.backends.values():
        await backend.close()


def _backend(section: config.BackendSection, engines: Mapping[str, Endpoint]) -> Backend:
    timeouts = Timeouts(section.connect_s, section.ttft_s, section.idle_s, section.total_s)
    if section.kind == "embedded":
        return registry.embedded(section.name, engines[section.name], timeouts)
    return registry.openai(
        section.name,
        section.base_url,
        auth=section.auth,
        key=section.api_key.get_secret_value() if section.api_key is not None else None,
        ask_usage=section.ask_usage,
        keepalive_s=section.keepalive_s,
        timeouts=timeouts,
    )


class _Counters:
    """A counter for each model: the upstream's own where it can count, else a local tokenizer."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._oracles: dict[str, OracleCounter] = {}
        """One for each backend: what it has counted under one name it knows under every other."""

    def of(self, section: config.Model, target: Target) -> Counter:
        if section.tokenizer_files is not None:
            return template_counter(section, self._parts)
        backend = target.backend
        if section.tokenizer == "auto" and isinstance(backend, Oracle):
            counter = self._oracles.get(backend.name)
            if counter is None:
                counter = self._oracles[backend.name] = OracleCounter(backend)
            return counter
        name = None if section.tokenizer == "auto" else section.tokenizer
        return LocalCounter(target.model, name, self._parts.memo, self._parts.pool)


def template_counter(section: config.Model, parts: Parts) -> Counter:
    """A counter from a model's own files, built at the first call: up to a second, 150 MB. Raises ValueError."""
    files, flags = section.tokenizer_files, section.chat_template
    assert files is not None
    key = f"{files} {flags.model_dump_json()}"
    if key not in parts.templates:
        # Not at the top: jinja2 and tokenizers are an extra, and 24 MB that other configs need not have.
        try:
            from proxy.tokens.template import ChatTemplate
            from proxy.tokens.template_counter import TemplateCounter
            from proxy.tokens.template_request import ServerFlags
            from proxy.tokens.tokenizer_files import load

            template = ChatTemplate.load(
                files if files.is_dir() else files.parent,
                ServerFlags(
                    server=flags.server,
                    default_chat_template_kwargs=flags.kwargs,
                    chat_template_content_format=flags.content_format,
                    exclude_tools_when_tool_choice_none=flags.exclude_tools_when_tool_choice_none,
                ),
                template=flags.file,
            )
            parts.templates[key] = TemplateCounter(template, load(files), parts.memo, parts.pool)
        except ImportError as error:
            raise ValueError(f"pip install 'chatfuse[templates]' (missing: {error.name})") from None
    return parts.templates[key]


def needed_encodings(settings: config.Config) -> list[str]:
    """Encodings that this config is sure or likely to use; any other is loaded at its first use."""
    names: dict[str, None] = {}
    for model in settings.models:
        if model.tokenizer_files is not None:
            continue
        if model.tokenizer != "auto":
            names[model.tokenizer] = None
            continue
        for target in model.targets:
            backend = settings.backend(target.backend)
            if backend is None or backend.kind == "embedded":
                continue
            upstream = target.model or model.name
            if "*" in upstream:
                names.update({"o200k_base": None, "cl100k_base": None})
            else:
                names[encodings.encoding_name(upstream) or "o200k_base"] = None
    return list(names)


async def load_tokenizers(settings: config.Config, parts: Parts) -> None:
    """Before the first request, side by side: none of them should find a tokenizer still to be built.

    Raises ConfigError for a model's files that cannot be used.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor() as threads:
        loading = [
            loop.run_in_executor(threads, encodings.encoding, name) for name in needed_encodings(settings)
        ]
        for i, model in enumerate(settings.models):
            if model.tokenizer_files is not None:
                try:
                    await loop.run_in_executor(threads, template_counter, model, parts)
                except ValueError as error:
                    raise config.ConfigError([(f"models[{i}].tokenizer", str(error))]) from None
        await asyncio.gather(*loading)
