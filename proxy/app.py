"""The composition root: a config becomes a runtime. Everything is put together here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from backends import registry
from backends.base import Backend, Target, Timeouts
from backends.endpoint import Endpoint
from proxy import config, pipeline
from proxy.account import Account
from proxy.ahead import Ahead
from proxy.bounded import remember
from proxy.catalog import ModelCatalog
from proxy.handlers.outgoing import describe
from proxy.learner import Learner
from proxy.load import Load
from proxy.memories import Book
from proxy.relay import Relay
from proxy.runtime import PassthroughRules, Runtime
from proxy.sampling import Sampler
from proxy.stages.identify import Catalog, Keys
from proxy.summaries import Summaries
from proxy.summarizer import Summarizer
from proxy.telemetry.metrics import Metrics
from proxy.tokens import encodings
from proxy.tokens.counts import Counter
from proxy.tokens.learned import LearnedCounter
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo
from proxy.tokens.oracle import OracleCounter
from proxy.tokens.truth import Truth

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

REMEMBERED_TEXTS = 100_000
"""Texts whose token count is remembered: some thousand conversations."""


@dataclass(slots=True)
class Parts:
    """What a process keeps over all its configs: counts remembered, metrics counted, threads started."""

    metrics: Metrics
    memo: Memo = field(default_factory=lambda: Memo(REMEMBERED_TEXTS))
    pool: CountingPool = field(default_factory=CountingPool)
    truths: dict[tuple[str, str], Truth] = field(default_factory=dict)
    """What replies have taught, by backend and the model's name there: a reload does not forget it."""
    templates: dict[str, Counter] = field(default_factory=dict)
    """Counters made of models' own files, by what the config says of them: a reload builds only what is new."""
    summaries: Summaries = field(init=False)
    load: Load = field(init=False)
    ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self.summaries = Summaries(self.metrics)
        self.load = Load(self.metrics.inflight)
        self.ahead = Ahead(self.summaries, self.load, self.metrics)

    async def stop(self) -> None:
        """What is done in the background."""
        await self.ahead.stop()
        await self.summaries.stop()

    def close(self) -> None:
        self.pool.close()


@dataclass(frozen=True, slots=True)
class _Ports:
    keys: Keys
    catalog: Catalog
    book: Book


def open_runtime(settings: config.Config, parts: Parts, engines: Mapping[str, Endpoint]) -> Runtime:
    """Build everything for one config. Opens no connection, so it cannot fail on a network."""
    backends = {section.name: _backend(section, engines) for section in settings.backends}
    counters = _Counters(parts)
    catalog = ModelCatalog(settings, backends, counters)
    keys = Keys(settings.callers)
    ports = _Ports(keys, catalog, parts.summaries)
    account = Account(parts.metrics)
    parts.summaries.write = Summarizer(catalog).write
    passthrough = settings.passthrough()
    return Runtime(
        config=settings,
        backends=backends,
        catalog=catalog,
        keys=keys,
        admission=pipeline.admission(settings, ports),
        fitting=pipeline.fitting(ports),
        relay=Relay(settings.server.keepalive_comment_s, describe, parts.load.change),
        account=account,
        metrics=parts.metrics,
        learner=Learner(backends, catalog),
        ahead=parts.ahead,
        sampler=Sampler(account.learn),
        passthrough=PassthroughRules(
            backends[passthrough] if passthrough is not None else None, settings.server.passthrough_paths
        ),
    )


async def close_runtime(runtime: Runtime) -> None:
    await runtime.learner.stop()
    await runtime.sampler.stop()
    for backend in runtime.backends.values():
        await backend.close()


def _backend(section: config.BackendSection, engines: Mapping[str, Endpoint]) -> Backend:
    timeouts = Timeouts(section.connect_s, section.ttft_s, section.idle_s, section.total_s)
    if section.kind == "embedded":
        return registry.embedded(section.name, engines[section.name], timeouts)
    if section.kind == "vllm" and section.base_url is None:
        return registry.own_vllm(section.name, engines[section.name], timeouts, section.ask_usage)
    make = registry.vllm if section.kind == "vllm" else registry.openai
    return make(
        section.name,
        section.base_url or "",
        auth=section.auth,
        key=section.api_key.get_secret_value() if section.api_key is not None else None,
        ask_usage=section.ask_usage,
        keepalive_s=section.keepalive_s,
        timeouts=timeouts,
    )


_MAX_COUNTERS = 2000
"""Names of models come from clients: what is kept for each of them is bounded."""


class _Counters:
    """A counter for each model: a local tokenizer that was named, else the server's own, else the likely one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._oracles: dict[tuple[str, str], OracleCounter] = {}

    def counter(self, section: config.Model, target: Target) -> Counter:
        oracle = self._oracle(target)
        if section.tokenizer_files is not None:
            local = template_counter(section, self._parts)
        elif section.tokenizer == "auto" and oracle is not None:
            return oracle
        else:
            name = None if section.tokenizer == "auto" else section.tokenizer
            local = LocalCounter(target.model, name, self._parts.memo, self._parts.pool)
        return LearnedCounter(local, self.truth(target), oracle)

    def truth(self, target: Target) -> Truth:
        return _remembered(self._parts.truths, (target.backend.name, target.model), Truth)

    def _oracle(self, target: Target) -> OracleCounter | None:
        oracle = target.backend.oracle(target.model)
        if oracle is None:
            return None
        key = (target.backend.name, oracle.scope)
        return _remembered(self._oracles, key, lambda: OracleCounter(oracle))

    def forget(self, backend: str) -> None:
        self._oracles = {key: oracle for key, oracle in self._oracles.items() if key[0] != backend}


def _remembered(known: dict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    found = known.get(key)
    if found is None:
        found = remember(known, key, make(), _MAX_COUNTERS)
    return found


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
