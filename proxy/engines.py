"""The engines that chatfuse runs itself: started before the workers, shared by them, stopped after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from backends.child import ChildError
from backends.embedded import Endpoint
from backends.engine_llama import (
    EngineMissing,
    LlamaEngine,
    LlamaOptions,
    find_weights,
    installed,
    require_engine,
)
from proxy import config

embedded_installed = installed


class EngineFailed(Exception):
    """An engine is missing or did not start: one sentence that says what to do."""


class Engines:
    def __init__(self, settings: config.Config) -> None:
        self._sections = [section for section in settings.backends if section.kind == "embedded"]
        self._running: list[LlamaEngine] = []

    async def start(self, on_progress: Callable[[str], None]) -> Mapping[str, Endpoint]:
        """Returns when all of them are ready. Raises EngineFailed."""
        endpoints: dict[str, Endpoint] = {}
        for section in self._sections:
            on_progress(f"{section.name}, the embedded model")
            engine = LlamaEngine(
                LlamaOptions(
                    weights=weights_of(section),
                    window_tokens=section.window_tokens,
                    slots=section.slots,
                    threads=section.threads,
                )
            )
            self._running.append(engine)
            try:
                endpoints[section.name] = await engine.start()
            except ChildError as error:
                raise EngineFailed(f"backend {section.name!r}: {error}") from None
        return endpoints

    async def stop(self) -> None:
        for engine in self._running:
            await engine.stop()
        self._running.clear()


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
