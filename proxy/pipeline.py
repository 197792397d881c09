"""THE TABLES: the whole life of a request before its bytes move, and the small machine that runs them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from proxy.config import Config
from proxy.exchange import Attempt, Exchange
from proxy.memories import Book
from proxy.stages.cap import Cap
from proxy.stages.count import Count
from proxy.stages.fuse import Fuse
from proxy.stages.identify import Catalog, Identify, Keys
from proxy.stages.parse import Parse
from proxy.stages.route import Route
from proxy.stages.shape import Shape


class Ports(Protocol):
    """What the stages may await or ask; opened by `proxy.app`."""

    @property
    def keys(self) -> Keys: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def book(self) -> Book: ...


def admission(config: Config, ports: Ports) -> Pipeline[Exchange]:
    """Who asks, for what, and how much of it we will look at. Once for each request."""
    return Pipeline(
        stage("parse", Parse(config.server), needs="headers body path", gives="prompt"),
        stage(
            "identify",
            Identify(ports.keys, config.fuse, ports.catalog),
            needs="headers path peer prompt",
            gives="caller candidates limit",
        ),
        inputs="headers body path peer",
    )


def fitting(ports: Ports) -> Pipeline[Attempt]:
    """Make the prompt fit one candidate model. Once for each model that is tried."""
    return Pipeline(
        stage("count", Count(), needs="prompt model limit", gives="counts"),
        stage("fuse", Fuse(), needs="counts limit", gives="fuse_status"),
        stage("shape", Shape(ports.book), needs="exchange prompt caller model counts", gives="shaped"),
        stage("cap", Cap(), needs="exchange prompt model shaped", gives="max_tokens"),
        stage("route", Route(), needs="model", gives="targets"),
        inputs="exchange prompt caller model limit",
    )


class Timed(Protocol):
    @property
    def timings(self) -> dict[str, float]: ...


Item = TypeVar("Item", bound=Timed)


class Stage(Generic[Item]):
    """One line of a table: a name, what runs, what it reads and what it sets."""

    __slots__ = ("gives", "name", "needs", "run")

    def __init__(self, name: str, run: Callable[[Item], Awaitable[None]], needs: str, gives: str) -> None:
        self.name = name
        self.run = run
        self.needs = frozenset(needs.split())
        self.gives = frozenset(gives.split())


def stage(name: str, run: Callable[[Any], Awaitable[None]], *, needs: str, gives: str = "") -> Stage[Any]:
    return Stage(name, run, needs, gives)


class Pipeline(Generic[Item]):
    """Stages in their order. Refuses, when built, a stage that needs what no earlier one gives."""

    def __init__(self, *stages: Stage[Item], inputs: str) -> None:
        known = set(inputs.split())
        for each in stages:
            if missing := each.needs - known:
                raise ValueError(
                    f"stage {each.name!r} needs {sorted(missing)}, which nothing before it gives"
                )
            if again := each.gives & known:
                raise ValueError(f"stage {each.name!r} gives {sorted(again)} again")
            known |= each.gives
        self.stages = stages

    async def run(self, it: Item) -> None:
        """Each stage in turn, its time noted under its name. A ProxyError from one ends the run."""
        timings = it.timings
        for each in self.stages:
            started = time.perf_counter()
            try:
                await each.run(it)
            finally:
                timings[each.name] = timings.get(each.name, 0.0) + time.perf_counter() - started
