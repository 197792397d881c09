"""The models of a config, ready to be served: found by name, with targets, counter and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from backends.base import Backend, Target
from proxy import config
from proxy.bounded import remember
from proxy.errors import InvalidRequest, ModelNotFound
from proxy.exchange import Model
from proxy.learner import Checkable
from proxy.routing import names
from proxy.tokens.counts import Counter
from proxy.tokens.learned import LearnedCounter
from proxy.tokens.truth import Truth

_MAX_REMEMBERED = 2000


class Counting(Protocol):
    """Who counts for a model, and what its replies have taught."""

    def counter(self, section: config.Model, target: Target) -> Counter: ...
    def truth(self, target: Target) -> Truth: ...
    def forget(self, backend: str) -> None:
        """What it has counted: it may be another server now."""
        ...


class ModelCatalog:
    """Implements `proxy.stages.identify.Catalog`. Exact names come before patterns, patterns in file order."""

    def __init__(self, settings: config.Config, backends: Mapping[str, Backend], counting: Counting) -> None:
        self._settings = settings
        self._backends = backends
        self._counting = counting
        self._exact = {model.name: model for model in settings.models if "*" not in model.name}
        self._callers = {caller.name: caller for caller in settings.callers}
        self._found: dict[tuple[str, str, config.Strategy | None], Sequence[Model]] = {}

    def find(self, name: str, caller: str, strategy: config.Strategy | None) -> Sequence[Model]:
        key = (name, caller, strategy)
        found = self._found.get(key)
        if found is None:
            if name in self._settings.not_served:
                raise ModelNotFound(
                    f"the model {name!r} is not served here: {self._settings.not_served[name]}", param="model"
                )
            section = names.find(self._settings.models, name)
            if section is None:
                return ()
            found = [self._model(section, name, caller, strategy)]
            found += [
                self._model(self._exact[fallback], fallback, caller, strategy)
                for fallback in section.fallbacks
            ]
            # Names come from clients: forget the oldest rather than grow.
            remember(self._found, key, found, _MAX_REMEMBERED)
        return found

    def _model(
        self, section: config.Model, name: str, caller: str, strategy: config.Strategy | None
    ) -> Model:
        settings = self._settings
        targets = [
            Target(self._backends[target.backend], target.model or name, target.weight)
            for target in section.targets
        ]
        first = targets[0]
        context = settings.context.overridden(section.context)
        if strategy is not None:
            if strategy == "summarize" and context.summary.model is None:
                raise InvalidRequest(
                    "x-chatfuse-context: summarize needs a model that writes summaries, and none is named here",
                    param="x-chatfuse-context",
                )
            context = context.model_copy(update={"strategy": strategy})
        cap = settings.cap if section.cap is None else section.cap.over(settings.cap)
        own = self._callers.get(caller)
        if own is not None and own.cap is not None:
            cap = own.cap.over(cap)
        return Model(
            name=name,
            entry=section.name,
            targets=targets,
            counter=self._counting.counter(section, first),
            truth=self._counting.truth(first),
            window=first.backend.window_tokens(first.model) if section.window == "auto" else section.window,
            context=context,
            cap=cap,
            fuse=section.fuse,
        )

    def learned(self, backend: str) -> None:
        """Windows and counters were derived from what a backend had told."""
        self._found.clear()
        self._counting.forget(backend)

    def checkable(self, backend: str) -> Sequence[Checkable]:
        """The models of a backend that are counted here, by names that are no patterns."""
        out = []
        for section in self._exact.values():
            first = section.targets[0]
            if first.backend != backend:
                continue
            target = Target(self._backends[first.backend], first.model or section.name, first.weight)
            oracle = target.backend.oracle(target.model)
            counter = self._counting.counter(section, target)
            if oracle is not None and isinstance(counter, LearnedCounter):
                truth = self._counting.truth(target)
                out.append(Checkable(section.name, counter.local, oracle, truth))
        return out
