"""`POST` of a prompt, in any dialect: the whole table."""

from __future__ import annotations

from backends.errors import BackendError
from proxy.config import Config
from proxy.dialects.chat import CHAT
from proxy.errors import InvalidRequest, Overflow
from proxy.exchange import Exchange
from proxy.handlers import inference
from proxy.handlers.call import Call
from proxy.handlers.tally import Tally
from proxy.relay import Unanswered


async def handle(call: Call) -> None:
    # Before the body: who has no key gets nothing read.
    call.runtime.keys.identify(call.headers)
    exchange = call.exchange()
    try:
        with call.runtime.account(exchange):
            exchange.body = await call.read_body()
            try:
                await call.runtime.admission.run(exchange)
            except InvalidRequest:
                if not _may_pass(call, exchange):
                    raise
                await _pass(call, exchange)
            else:
                await _answer(call, exchange)
    except Exception:
        call.describe(exchange)
        raise


def _may_pass(call: Call, exchange: Exchange) -> bool:
    """Whether the upstream judges a body that names no model, as far as we can read it.

    `/v1/responses` needs none with a stored prompt. Where a fuse or a ceiling is set, it would be a way around.
    """
    return (
        not hasattr(exchange, "prompt")
        and call.client.dialect is not CHAT
        and inference.model_of(inference.unpacked(call, exchange.body)) is None
        and not limits_tokens(call.runtime.config)
    )


async def _pass(call: Call, exchange: Exchange) -> None:
    caller, _ = call.runtime.keys.identify(call.headers)
    tally = Tally()
    try:
        await inference.unnamed(call, caller, exchange.body, tally)
    finally:
        exchange.progress.backend = tally.backend
        if tally.outcome is not None:
            exchange.finish(tally.outcome)


def limits_tokens(config: Config) -> bool:
    """Whether a fuse or a ceiling is set anywhere."""
    fuses = [config.fuse, *config.fuse.routes.values(), *(m.fuse for m in config.models)]
    caps = [config.cap, *(m.cap for m in config.models), *(c.cap for c in config.callers)]
    fuses += [c.fuse for c in config.callers]
    return any(fuse is not None and fuse.max_context_tokens for fuse in fuses) or any(
        cap is not None and (cap.max_tokens or cap.default_tokens) for cap in caps
    )


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
            runtime.ahead.sent(attempt)
            unanswered = await runtime.relay(attempt, call.client, more=i + 1 < len(exchange.candidates))
        except (Overflow, BackendError) as error:
            # It does not fit into this one, or the server that counts for it is down.
            if call.client.started:
                raise
            unanswered = error
        if unanswered is None:
            if exchange.outcome == "ok":
                runtime.ahead.consider(attempt)
                runtime.sampler.consider(attempt)
            return
        if failure is None:
            failure, failed = unanswered, attempt
    assert failure is not None
    assert failed is not None
    if isinstance(failure, Overflow | BackendError):
        raise failure
    await runtime.relay.give_up(failed, call.client, failure)
