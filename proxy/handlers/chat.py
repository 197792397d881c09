"""`POST /v1/chat/completions`: the whole table."""

from __future__ import annotations

from backends.errors import BackendError
from proxy.errors import Overflow
from proxy.exchange import Exchange
from proxy.handlers.call import Call
from proxy.relay import Unanswered


async def handle(call: Call) -> None:
    # Before the body: who has no key gets nothing read.
    call.runtime.keys.identify(call.headers)
    exchange = call.exchange()
    try:
        with call.runtime.account(exchange):
            exchange.body = await call.read_body()
            await call.runtime.admission.run(exchange)
            await _answer(call, exchange)
    except Exception:
        call.describe(exchange)
        raise


async def _answer(call: Call, exchange: Exchange) -> None:
    """The asked-for model, then its fallbacks; when none answers, what the first of them failed with."""
    runtime = call.runtime
    failure: Unanswered | Overflow | BackendError | None = None
    failed = None
    for i, model in enumerate(exchange.candidates):
        attempt = exchange.attempt(model)
        unanswered: Unanswered | Overflow | BackendError | None
        try:
            await runtime.fitting.run(attempt)
            unanswered = await runtime.relay(attempt, call.client, more=i + 1 < len(exchange.candidates))
        except (Overflow, BackendError) as error:
            # It does not fit into this one, or the server that counts for it is down.
            if call.client.started:
                raise
            unanswered = error
        if unanswered is None:
            return
        if failure is None:
            failure, failed = unanswered, attempt
    assert failure is not None
    assert failed is not None
    if isinstance(failure, Overflow | BackendError):
        raise failure
    await runtime.relay.give_up(failed, call.client, failure)
