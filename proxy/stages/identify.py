"""Who asks, for which model, and where the fuse stands for them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol

from backends.base import Headers
from backends.headers import client_key
from proxy import config
from proxy.errors import InvalidApiKey, InvalidRequest, ModelNotFound, NotAllowed
from proxy.exchange import ANONYMOUS, Caller, Exchange, Limit, Model, network_holds
from proxy.routing.names import matches

CONTEXT_HEADER = "x-chatfuse-context"
_STRATEGIES: Mapping[str, config.Strategy] = {"keep": "keep", "trim": "trim", "summarize": "summarize"}


class Catalog(Protocol):
    """The models that are served, found by the name that a client asks for."""

    def find(self, name: str, caller: str, strategy: config.Strategy | None) -> Sequence[Model]:
        """The model and then its fallbacks, with settings for this caller; empty when nobody serves it."""
        ...


class Identify:
    def __init__(self, keys: Keys, fuse: config.Fuse, catalog: Catalog) -> None:
        self._keys = keys
        self._fuse = fuse
        self._catalog = catalog

    async def __call__(self, it: Exchange) -> None:
        caller, own_fuse = self._keys.identify(it.headers)
        name = it.prompt.model
        strategy = chosen_strategy(it.headers, caller)
        candidates = self._catalog.find(name, caller.name, strategy)
        if not candidates:
            raise ModelNotFound(f"the model {shown(name)} is not served here", param="model")
        check_model(caller, name)
        it.caller = caller
        it.candidates = [candidates[0], *(m for m in candidates[1:] if may_use(caller, m.name))]
        it.limit = limit(
            self._fuse,
            route=self._fuse.routes.get(it.path.partition("?")[0]),
            model=candidates[0].fuse,
            caller=own_fuse,
            allowed=caller.name in self._fuse.allow.callers
            or (bool(self._fuse.allow.networks) and network_holds(self._fuse.allow.networks, it.peer)),
        )


class Keys:
    """The callers' keys, held as digests only and compared in constant time."""

    def __init__(self, callers: Sequence[config.Caller]) -> None:
        self._callers: Mapping[bytes, tuple[Caller, config.FuseOverride | None]] = {
            _digest(caller.key.get_secret_value()): (
                Caller(caller.name, caller.models, caller.may_choose_context),
                caller.fuse,
            )
            for caller in callers
        }

    def identify(self, headers: Headers) -> tuple[Caller, config.FuseOverride | None]:
        """Raises InvalidApiKey. Without configured callers everyone is the anonymous one."""
        if not self._callers:
            return ANONYMOUS, None
        key = client_key(headers)
        if key is None:
            raise InvalidApiKey("no API key was given: send it as `Authorization: Bearer KEY`")
        digest = _digest(key)
        found = None
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise InvalidApiKey("the API key is not known here")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def may_use(caller: Caller, model: str) -> bool:
    return any(matches(pattern, model) for pattern in caller.models)


def check_model(caller: Caller, model: str) -> None:
    """Raises NotAllowed when the caller's list does not hold the model."""
    if not may_use(caller, model):
        raise NotAllowed(f"the caller {caller.name!r} may not use the model {shown(model)}", param="model")


def shown(name: str) -> str:
    """A client's string for an error message: quoted, and never long."""
    return repr(name if len(name) <= 100 else name[:100] + "…")


def chosen_strategy(headers: Headers, caller: Caller) -> config.Strategy | None:
    """The strategy that the client asks for by header, if it may. Raises InvalidRequest, NotAllowed."""
    for name, value in headers:
        if name.lower() == CONTEXT_HEADER:
            chosen = _STRATEGIES.get(value)
            if chosen is None:
                raise InvalidRequest(
                    f"{CONTEXT_HEADER} must be keep, trim or summarize, not {shown(value)}",
                    param=CONTEXT_HEADER,
                )
            if not caller.may_choose_context:
                raise NotAllowed(
                    f"the caller {caller.name!r} may not set {CONTEXT_HEADER}", code="context_not_allowed"
                )
            return chosen
    return None


def limit(
    fuse: config.Fuse,
    *,
    route: config.FuseOverride | None,
    model: config.FuseOverride | None,
    caller: config.FuseOverride | None,
    allowed: bool,
) -> Limit:
    """The threshold in force: the caller's own, else the route's, else the model's, else the general one."""
    tokens, mode = fuse.max_context_tokens, fuse.mode
    for override in (model, route, caller):
        if override is not None:
            tokens = override.max_context_tokens or tokens
            mode = override.mode or mode
    return Limit(tokens, enforced=mode == "enforce", allowed=allowed)
