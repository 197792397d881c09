"""The one loop that moves response bytes. Failover happens before the first event reaches the client.

The point of no return is the first *event* byte to the client: until then another target may answer, after
it an error is an SSE error event and no `[DONE]`. A keep-alive comment commits status and headers only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from backends.base import Headers, Reply, Target, UpstreamRequest
from backends.errors import BackendError, NotReady, TimedOut
from backends.sse import Framer, event_data, split_events
from proxy import errors
from proxy.answer import Answer, Client, HeldReply
from proxy.dialects.prompt import Usage
from proxy.exchange import Attempt, Exchange, Progress

log = logging.getLogger(__name__)

MAX_HELD_BYTES = 8 * 1024 * 1024
"""A reply that is no stream is held back up to this size, so that another target can still answer."""
TRY_NEXT = frozenset((408, 429, 500, 502, 503, 504, 529))
"""Statuses that say "not here, not now". 529 is Anthropic's "overloaded"."""

Describe = Callable[[Exchange, Attempt], Headers]


Unanswered = HeldReply | errors.UpstreamError
"""Why a candidate gave no answer: what an upstream said ("not here, not now"), or that none did."""


class Relay:
    """Sends an attempt to its targets until one answers."""

    def __init__(
        self, keepalive_comment_s: float | None, describe: Describe, inflight: Callable[[str, int], None]
    ) -> None:
        self._keepalive_s = keepalive_comment_s
        self._inflight = inflight
        self._describe = describe
        """The `x-chatfuse-*` fields of an answer, from what is known of the exchange when it starts."""

    async def __call__(self, attempt: Attempt, client: Client, *, more: bool = False) -> Unanswered | None:
        """None: the client has its answer. Else why not, for whoever comes next, or for `give_up`.

        `more`: another candidate can be tried after this one.
        """
        exchange = attempt.exchange
        answer = self._answer(attempt, client)
        failure: Unanswered | None = None
        async with answer.commented(self._keepalive_s if attempt.prompt.stream else None):
            targets = [target for target in attempt.targets if may_go_to(exchange, target)]
            for i, target in enumerate(targets):
                note_target(exchange, target)
                self._inflight(target.backend.name, 1)
                try:
                    held = await self._try(attempt, target, answer, more=more or i + 1 < len(targets))
                    if held is None:
                        return None
                    failure = failure or held
                except BackendError as error:
                    if not error.retryable or answer.sent_event:
                        raise
                    log.warning("%s", error, extra={"request_id": exchange.id})
                    failure = failure or unanswered(error)
                finally:
                    self._inflight(target.backend.name, -1)
        return failure or unanswered(None)

    async def give_up(self, attempt: Attempt, client: Client, failure: Unanswered) -> None:
        """Nobody answered: what the first of them said, or the error that tells of it."""
        attempt.exchange.finish("upstream_error")
        if isinstance(failure, HeldReply):
            await self._answer(attempt, client).whole(failure, failure.body)
        else:
            await self._answer(attempt, client).fail(failure)

    def _answer(self, attempt: Attempt, client: Client) -> Answer:
        return Answer(client, attempt.prompt.dialect, lambda: self._describe(attempt.exchange, attempt))

    async def _try(self, attempt: Attempt, target: Target, answer: Answer, *, more: bool) -> HeldReply | None:
        """None: this target's answer is the client's. Raises BackendError when it gave none."""
        adds_usage = attempt.prompt.stream and not attempt.prompt.asks_usage and target.backend.ask_usage
        reply = await self._send(attempt, target, add_usage=adds_usage)
        try:
            if is_event_stream(reply):
                await self._stream(attempt, reply, answer, strip_usage=adds_usage)
                return None
            held, complete = await hold(reply, attempt.exchange.progress)
            if adds_usage and reply.status == 400 and b"stream_options" in held:
                # Perhaps it does not know the field; it certainly does not if it takes the request without.
                reply.close()
                reply = await self._send(attempt, target, add_usage=False)
                if reply.status < 400:
                    target.backend.refuse_usage()
                if is_event_stream(reply):
                    await self._stream(attempt, reply, answer, strip_usage=False)
                    return None
                held, complete = await hold(reply, attempt.exchange.progress)
            if more and complete and reply.status in TRY_NEXT:
                log.warning(
                    "backend %r answered %d",
                    target.backend.name,
                    reply.status,
                    extra={"request_id": attempt.exchange.id},
                )
                return HeldReply(reply.status, reply.reason, reply.headers, held)
            await self._whole(attempt.exchange, reply, answer, held, complete=complete)
            return None
        finally:
            reply.close()

    async def _send(self, attempt: Attempt, target: Target, *, add_usage: bool) -> Reply:
        progress = attempt.exchange.progress
        progress.sent_at = _now()
        progress.first_byte = progress.last_chunk = 0.0
        progress.status = progress.chunks = 0
        reply = await target.backend.send(outgoing(attempt, target, add_usage=add_usage))
        progress.status = reply.status
        return reply

    async def _whole(
        self, exchange: Exchange, reply: Reply, answer: Answer, held: bytes, *, complete: bool
    ) -> None:
        if complete:
            if b'"usage"' in held:
                note_usage(exchange.progress, exchange.prompt.dialect.usage(_loads(held)))
            await answer.whole(reply, held)
        else:
            await answer.long(reply, held)
            try:
                while data := await reply.read_some():
                    note_chunk(exchange.progress)
                    await answer.write(data)
            except BackendError as error:
                exchange.finish("interrupted")
                log.warning("%s in the middle of its answer", error, extra={"request_id": exchange.id})
                answer.abort()
                return
            await answer.finish()
        exchange.finish("ok" if reply.status < 400 else "upstream_error")

    async def _stream(self, attempt: Attempt, reply: Reply, answer: Answer, *, strip_usage: bool) -> None:
        exchange = attempt.exchange
        progress, framer, usage = exchange.progress, Framer(), attempt.prompt.dialect.usage
        try:
            while data := await reply.read_some():
                note_chunk(progress)
                block = framer.feed(data)
                if b'"usage"' in block:
                    block = read_usage(block, progress, usage, strip=strip_usage)
                if block:
                    await answer.events(reply, block)
            rest = framer.rest()
            if b'"usage"' in rest:
                rest = read_usage(rest, progress, usage, strip=strip_usage)
            await answer.events(reply, rest)
        except BackendError as error:
            if not answer.sent_event:
                raise
            exchange.finish("interrupted")
            log.warning("%s in mid-stream", error, extra={"request_id": exchange.id})
            await answer.fail(unanswered(error))
            return
        await answer.finish()
        exchange.finish("ok" if reply.status < 400 else "upstream_error")


def outgoing(attempt: Attempt, target: Target, *, add_usage: bool) -> UpstreamRequest:
    """The request as this target gets it: the client's own bytes unless something had to change."""
    exchange, prompt, cap = attempt.exchange, attempt.prompt, attempt.max_tokens
    edits = replace(
        attempt.shaped.edits,
        model=target.model if target.model != prompt.model else None,
        caps=cap.written,
        add_usage=add_usage,
    )
    # Usage is read from the reply, so it must come as it is; edits need the body as it is.
    drop = {"accept-encoding"} if edits.none else {"accept-encoding", "content-encoding"}
    headers = [(n, v) for n, v in exchange.headers if n.lower() not in drop]
    headers.append(("Accept-Encoding", "identity"))
    body = exchange.body if edits.none else prompt.dialect.encode(prompt, edits)
    return UpstreamRequest("POST", exchange.path, headers, body)


def may_go_to(exchange: Exchange, target: Target) -> bool:
    """A client's key goes to the first backend that was tried, never across a fallback to another one."""
    first = exchange.progress.first_backend
    return not first or target.backend.name == first or target.backend.auth != "client"


def note_target(exchange: Exchange, target: Target) -> None:
    progress = exchange.progress
    progress.first_backend = progress.first_backend or target.backend.name
    progress.backend = target.backend.name
    progress.tries += 1


def note_chunk(progress: Progress) -> None:
    now = _now()
    if not progress.first_byte:
        progress.first_byte = now
    progress.last_chunk = now
    progress.chunks += 1


def is_event_stream(reply: Reply) -> bool:
    """An event stream that can be read: one with a content coding passes as it is, like any other body."""
    kind = coding = ""
    for name, value in reply.headers:
        low = name.lower()
        if low == "content-type":
            kind = value
        elif low == "content-encoding":
            coding = value
    return kind.lower().startswith("text/event-stream") and coding in ("", "identity")


async def hold(reply: Reply, progress: Progress) -> tuple[bytes, bool]:
    """The whole body and True, or what was read when it grew beyond what is held back, and False."""
    parts: list[bytes] = []
    size = 0
    while data := await reply.read_some():
        note_chunk(progress)
        parts.append(data)
        size += len(data)
        if size > MAX_HELD_BYTES:
            return b"".join(parts), False
    return b"".join(parts), True


def read_usage(
    block: bytes, progress: Progress, usage: Callable[[Any], Usage | None], *, strip: bool
) -> bytes:
    """Take note of usage in whole events; leave out the event that only we asked for."""
    kept: list[bytes] = []
    for event in split_events(block):
        if b'"usage"' in event and (data := event_data(event)) is not None:
            value = _loads(data)
            if note_usage(progress, usage(value)) and strip and value.get("choices") == []:
                continue
        kept.append(event)
    return b"".join(kept)


def note_usage(progress: Progress, usage: Usage | None) -> bool:
    """Keep what the upstream reports; the last number that is given and not zero counts."""
    if usage is None:
        return False
    progress.usage_prompt = usage.prompt or progress.usage_prompt
    progress.usage_completion = usage.completion or progress.usage_completion
    if usage.cached is not None:
        progress.usage_cached = usage.cached
    return True


def unanswered(failure: BackendError | None) -> errors.UpstreamError:
    """What the client is told when no upstream answered, or one broke off."""
    if isinstance(failure, TimedOut):
        return errors.UpstreamTimeout(str(failure))
    if isinstance(failure, NotReady):
        return errors.NoBackend(str(failure), retry_after_s=failure.retry_after_s)
    return errors.UpstreamError(str(failure) if failure else "no backend may take this request")


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


_now = time.perf_counter
