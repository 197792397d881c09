"""The engines that chatfuse runs itself: started before the workers or beside them, shared by them, stopped after them.

The embedded model is there in a second, and is waited for. A vLLM takes minutes: it is looked at first, for all that
can be known, and then started while the proxy serves already, from its other backends or with a 503 that says why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from backends.child import ChildError, State
from backends.endpoint import Endpoint
from backends.engine_llama import (
    EngineMissing,
    LlamaEngine,
    LlamaOptions,
    find_weights,
    installed,
    require_engine,
)
from backends.vllm import preflight
from backends.vllm.engine import VllmEngine
from backends.vllm.options import EngineOptions, speculative_config
from backends.vllm.preflight import Impossible, Prepared
from proxy import config
from proxy.config_checks import is_engine, served_names

log = logging.getLogger(__name__)

embedded_installed = installed


class EngineFailed(Exception):
    """An engine is missing or did not start: one sentence that says what to do."""


class Engines:
    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._embedded: list[LlamaEngine] = []
        self._vllm: list[VllmEngine] = []
        self._failed: dict[str, str] = {}
        self._starting: asyncio.Task[None] | None = None
        self._on_progress: Callable[[str], None] = lambda _: None

    async def start(self, on_progress: Callable[[str], None]) -> Mapping[str, Endpoint]:
        """Returns when embedded ones are ready, and the others can be expected to be. Raises EngineFailed."""
        self._on_progress = on_progress
        endpoints: dict[str, Endpoint] = {}
        for i, section in enumerate(self._settings.backends):
            if section.kind == "embedded":
                endpoints[section.name] = await self._start_embedded(section)
            elif section.kind == "vllm" and is_engine(section):
                endpoints[section.name] = await self._prepare(f"backends[{i}]", section)
        if self._vllm:
            self._starting = asyncio.create_task(self._start_vllm(), name="engines")
        return endpoints

    async def gave_up(self) -> NoReturn:
        """Raises EngineFailed when no backend is left that could ever serve; else it waits for that."""
        if self._starting is not None:
            await asyncio.shield(self._starting)
            if {section.name for section in self._settings.backends} <= set(self._failed):
                raise EngineFailed("; ".join(self._failed.values()))
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(*(e.stop() for e in self._embedded), *(e.stop() for e in self._vllm))
        self._embedded.clear()
        self._vllm.clear()

    async def _start_embedded(self, section: config.EmbeddedBackend) -> Endpoint:
        self._on_progress(f"{section.name}, the embedded model")
        engine = LlamaEngine(
            LlamaOptions(
                weights=weights_of(section),
                window_tokens=section.window_tokens,
                slots=section.slots,
                threads=section.threads,
            )
        )
        self._embedded.append(engine)
        try:
            return await engine.start()
        except ChildError as error:
            raise EngineFailed(f"backend {section.name!r}: {error}") from None

    async def _prepare(self, key: str, section: config.VllmBackend) -> Endpoint:
        self._on_progress(f"{section.name}: looking at vLLM and its model")
        engine = VllmEngine(section.name, options_of(self._settings, section), self._changed)
        self._vllm.append(engine)
        try:
            endpoint = await engine.prepare()
        except (Impossible, ChildError) as error:
            raise EngineFailed(_with_keys(key, error)) from None
        assert engine.prepared is not None
        for warning in engine.prepared.warnings:
            log.warning("backend %r: %s", section.name, warning)
        return endpoint

    async def _start_vllm(self) -> None:
        # One after the other: each measures the memory that is free on the GPU, and must not see another's grow.
        for engine in self._vllm:
            began = time.monotonic()
            try:
                await engine.start()
            except ChildError as error:
                self._failed[engine.name] = str(error)
                log.error("%s", error)
            else:
                log.info("backend %r is ready after %.1f s", engine.name, time.monotonic() - began)
            self._on_progress("")

    def _changed(self, engine: VllmEngine) -> None:
        if engine.state is State.STARTING:
            self._on_progress(f"{engine.name} {engine.bar}")


def options_of(settings: config.Config, section: config.VllmBackend) -> EngineOptions:
    """What a section says, as the engine takes it."""
    flags = section.engine_flags
    if names := served_names(settings, section):
        flags["served_model_name"] = list(names)
    if section.speculative is not None:
        flags["speculative"] = speculative_config(section.speculative.model_dump())
    return EngineOptions(
        flags=flags,
        extra_args=section.extra_args,
        command=section.command,
        env={name: value.get_secret_value() for name, value in section.env.items()},
        cache_dir=section.cache_dir,
        port=section.port,
        preload=section.preload,
        warm_prompts=section.warm_prompts,
        start_timeout_s=section.start_timeout_s,
        stop_grace_s=section.stop_grace_s,
    )


def look_at_vllm(settings: config.Config, section: config.VllmBackend) -> Prepared:
    """What would be started, without starting it; for `chatfuse check`. Raises Impossible."""
    return asyncio.run(preflight.prepare(options_of(settings, section)))


def _with_keys(key: str, error: Impossible | ChildError) -> str:
    if isinstance(error, ChildError):
        return f"{key}: {error}"
    return "; ".join(f"{key}.{name}: {problem}" for name, problem in error.problems)


def weights_of(section: config.EmbeddedBackend) -> Path:
    """The model's file. Raises EngineFailed, which names the command that installs what is missing."""
    try:
        require_engine()
        weights = section.weights or find_weights()
    except EngineMissing as error:
        raise EngineFailed(str(error)) from None
    if not weights.is_file():
        raise EngineFailed(f"weights: there is no file {weights}")
    return weights
