"""The models of a config, ready to be served: found by name, with targets, counter and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backends.base import Backend, Target
from proxy import config
from proxy.errors import ModelNotFound
from proxy.exchange import Model
from proxy.routing import names
from proxy.tokens.counts import Counter

CounterOf = Callable[[config.Model, Target], Counter]
_MAX_REMEMBERED = 2000


class ModelCatalog:
    """Implements `proxy.stages.identify.Catalog`. Exact names come before patterns, patterns in file order."""

    def __init__(
        self, settings: config.Config, backends: Mapping[str, Backend], counter_of: CounterOf
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._counter_of = counter_of
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
            if len(self._found) >= _MAX_REMEMBERED:
                # Names come from clients: forget the oldest rather than grow.
                del self._found[next(iter(self._found))]
            self._found[key] = found
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
            context = context.model_copy(update={"strategy": strategy})
        cap = settings.cap if section.cap is None else section.cap.over(settings.cap)
        own = self._callers.get(caller)
        if own is not None and own.cap is not None:
            cap = own.cap.over(cap)
        return Model(
            name=name,
            entry=section.name,
            targets=targets,
            counter=self._counter_of(section, first),
            window=first.backend.window_tokens(first.model) if section.window == "auto" else section.window,
            context=context,
            cap=cap,
            fuse=section.fuse,
        )
