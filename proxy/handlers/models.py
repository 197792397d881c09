"""`GET /v1/models`: what can be asked for here, merged over the backends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from backends.base import Backend, Headers, RefusedList
from backends.errors import BackendError
from proxy.config import Config, Model
from proxy.exchange import Caller
from proxy.handlers import passthrough
from proxy.handlers.call import Call
from proxy.handlers.tally import Tally, tallied
from proxy.routing.names import matches
from proxy.stages.identify import check_model, may_use

log = logging.getLogger(__name__)


async def handle(call: Call) -> None:
    with tallied(call.runtime.metrics) as tally:
        await _handle(call, tally)


async def _handle(call: Call, tally: Tally) -> None:
    runtime = call.runtime
    caller, _ = runtime.keys.identify(call.headers)
    asked = [runtime.backends[name] for name in backends_to_ask(runtime.config, runtime.backends)]
    results = await asyncio.gather(*(_ask(backend, call.headers) for backend in asked))
    lists = {
        backend.name: entries
        for backend, entries in zip(asked, results, strict=True)
        if not isinstance(entries, RefusedList | BackendError)
    }
    entries = merge(runtime.config, caller, lists)
    if not entries:
        for backend, refusal in zip(asked, results, strict=True):
            if isinstance(refusal, RefusedList):
                # Nothing to show but an upstream's refusal, of the client's key most likely: its own words.
                tally.backend, tally.outcome = backend.name, "upstream_error"
                headers = [(n, v) for n, v in refusal.headers if n.lower() != "x-request-id"]
                await call.client.answer(refusal.status, "", [*headers, *call.fields], refusal.body)
                return
    await call.answer_json(200, orjson.dumps({"object": "list", "data": entries}))


async def one(call: Call) -> None:
    """`GET /v1/models/NAME`: a name of ours from the config, any other from whoever takes unknown paths."""
    runtime = call.runtime
    name = unquote(call.route.removeprefix("/v1/models/"))
    caller, _ = runtime.keys.identify(call.headers)
    own = next((model for model in runtime.config.models if model.name == name and "*" not in name), None)
    if own is None and may_use(caller, name):
        await passthrough.handle(call)
        return
    with tallied(runtime.metrics):
        check_model(caller, name)
        assert own is not None
        await call.answer_json(200, orjson.dumps(entry_of(own)))


async def _ask(
    backend: Backend, headers: Headers
) -> Sequence[Mapping[str, Any]] | RefusedList | BackendError:
    try:
        return await backend.models(headers)
    except (RefusedList, BackendError) as error:
        log.info("no model list of backend %r: %s", backend.name, error)
        return error


def backends_to_ask(config: Config, backends: Mapping[str, Backend]) -> list[str]:
    """Backends behind a pattern: only they know what names it stands for.

    A client's key is for one upstream, so only the first that takes it is asked.
    """
    behind = {
        target.backend: None for model in config.models if "*" in model.name for target in model.targets
    }
    takes_key = [name for name in behind if backends[name].auth == "client"]
    return [name for name in behind if name not in takes_key[1:]]


def merge(
    config: Config, caller: Caller, lists: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Mapping[str, Any]]:
    """Each name once, in the config's order; an upstream's entry as it gave it. Pure."""
    merged: dict[str, Mapping[str, Any]] = {}
    for model in config.models:
        if "*" not in model.name:
            merged.setdefault(model.name, entry_of(model))
            continue
        for target in model.targets:
            for entry in lists.get(target.backend, ()):
                if matches(model.name, entry["id"]):
                    merged.setdefault(entry["id"], entry)
    return [entry for name, entry in merged.items() if may_use(caller, name)]


def entry_of(model: Model) -> Mapping[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": model.targets[0].backend}
