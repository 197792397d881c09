"""`POST /v1/chat/completions`: the whole table."""

from __future__ import annotations

from backends.errors import BackendError
from proxy.handlers.call import Call


async def handle(call: Call) -> None:
    runtime = call.runtime
    exchange = call.exchange(await call.read_body())
    try:
        with runtime.account(exchange):
            await runtime.admission.run(exchange)
            last = len(exchange.candidates) - 1
            for i, model in enumerate(exchange.candidates):
                attempt = exchange.attempt(model)
                try:
                    await runtime.fitting.run(attempt)
                except BackendError:
                    # Its own server counts for it, and is down.
                    if i == last:
                        raise
                    continue
                if await runtime.relay(attempt, call.client, last=i == last):
                    break
    except Exception:
        call.describe(exchange)
        raise
