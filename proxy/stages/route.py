"""Where the request goes: the model's targets, in the order in which they are tried."""

from __future__ import annotations

import random

from proxy.exchange import Attempt
from proxy.routing.choose import order


class Route:
    async def __call__(self, it: Attempt) -> None:
        targets = it.model.targets
        if len(targets) > 1:
            # Spreading load needs no secrecy. 1 - random() is in (0, 1].
            targets = order(targets, [1.0 - random.random() for _ in targets])  # noqa: S311
        it.targets = targets
