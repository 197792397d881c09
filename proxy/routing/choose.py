"""The order in which a model's targets are tried. Pure: chance comes in as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Weighted(Protocol):
    @property
    def weight(self) -> float: ...


T = TypeVar("T", bound=Weighted)


def order(targets: Sequence[T], chances: Sequence[float]) -> Sequence[T]:
    """All targets, each first with a probability that is its share of the weights.

    `chances`: one uniform number in (0, 1] for each target. Source: weighted sampling without replacement by
    the largest u ** (1 / w) (Efraimidis and Spirakis, 2006).
    """
    if len(targets) == 1:
        return targets
    keyed = sorted(
        zip(targets, chances, strict=True), key=lambda pair: pair[1] ** (1 / pair[0].weight), reverse=True
    )
    return [target for target, _ in keyed]
