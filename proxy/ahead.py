"""After a reply: what the next turn will need, begun while the user reads. Its summary, and its prefill.

The next cut is known turns ahead, so both have a certain key. Nothing here is waited for by a request, and a
prefill gives way at once when one comes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from backends.base import Target, UpstreamRequest
from backends.errors import BackendError
from backends.http_reply import take
from proxy import conversation
from proxy.conversation import Planned
from proxy.dialects.chat import CHAT, is_reasoning
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Edits
from proxy.exchange import Attempt
from proxy.history import upcoming
from proxy.history.plan import Cut
from proxy.load import Load
from proxy.memories import Book, Memories
from proxy.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Conversations that one process looks ahead for; more than these are left alone."""
PREFILL_LIMIT_S: Final = 60.0
_MAX_REPLY_BYTES: Final = 1024 * 1024
_JSON: Final = [("Content-Type", "application/json"), ("Accept-Encoding", "identity")]


class Ahead:
    def __init__(self, book: Book, load: Load, metrics: Metrics) -> None:
        self._book = book
        self._load = load
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def consider(self, attempt: Attempt) -> None:
        """Look ahead for the conversation that has just been answered. Returns at once."""
        context, budget = attempt.model.context, attempt.model.budget
        if context.strategy == "keep" or budget is None or not attempt.prompt.messages:
            return
        if attempt.shaped.counts.tokens < budget * min(context.low_water, context.summary.start_at):
            return  # far from any cut
        if not (context.strategy == "summarize" or prewarms(attempt)) or len(self._tasks) >= AT_ONCE:
            return
        task = asyncio.create_task(self._look(attempt, budget))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def sent(self, attempt: Attempt) -> None:
        """It is sent: what its boundary is sent with stays."""
        if attempt.shaped.boundary is not None:
            self._book.decide(*attempt.shaped.boundary)

    async def settled(self) -> None:
        """Until nothing is being done ahead of time."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self, attempt: Attempt, budget: int) -> None:
        context, counter = attempt.model.context, attempt.model.counter
        limit = attempt.model.limit or budget
        memories = Memories(self._book, attempt) if context.strategy == "summarize" else None
        try:
            talk = await conversation.squeezed(attempt.prompt, context, counter, attempt.counts)
            made = await conversation.planned(replace(talk, memory=memories), budget, limit)
        except BackendError as error:
            log.info("what comes next was not planned: %s", error, extra={"request_id": attempt.exchange.id})
            return
        except Exception:
            log.exception("what comes next was not planned", extra={"request_id": attempt.exchange.id})
            return
        now = attempt.shaped.cut
        if memories is not None and attempt.shaped.counts.tokens >= budget * context.summary.start_at:
            coming = upcoming.following(made.cuts, now)
            if coming is not None:
                memories.want(coming, now)
        target = prewarms(attempt)
        if target is None:
            return
        more = attempt.exchange.progress.usage_completion or 0
        more += upcoming.typical_message(made.layout, made.weights)
        sent = attempt.shaped.counts.tokens
        cut = upcoming.next_cut(made.cuts, now, made.counts.tokens, sent, limit, more)
        if cut is not None:
            await self._prewarm(attempt, target, made, cut, memories)

    async def _prewarm(
        self, attempt: Attempt, target: Target, made: Planned, cut: Cut, memories: Memories | None
    ) -> None:
        outcome = "failed"
        try:
            if memories is not None:
                # What is prefilled is what is sent: the boundary is used here first.
                await self._book.ready(memories.key(cut))
                memories = Memories(self._book, attempt)
                self._book.decide(*memories.boundary(cut))
                made = replace(made, memory=memories)
            edits = made.edits(cut)
            finished = await self._load.while_idle(
                target.backend.name, lambda: self._prefill(attempt, target, edits)
            )
            outcome = "done" if finished else "gave_way"
        except (BackendError, TimeoutError) as error:
            log.info("a prompt was not sent ahead: %s", error or "it took too long")
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:
            log.exception("a prompt was not sent ahead", extra={"request_id": attempt.exchange.id})
        finally:
            self._metrics.prewarm(outcome)

    async def _prefill(self, attempt: Attempt, target: Target, edits: Edits) -> None:
        """The prompt after the cut, up to the last message that the client sent, for one token."""
        prompt = attempt.prompt
        names = [*prompt.caps] or prompt.dialect.cap_names(reasoning=is_reasoning(target.model))[:1]
        edits = replace(
            edits,
            model=target.model if target.model != prompt.model else None,
            caps=dict.fromkeys(names, 1),
        )
        request = UpstreamRequest("POST", prompt.dialect.path, _JSON, prompt.dialect.encode(prompt, edits))
        async with asyncio.timeout(PREFILL_LIMIT_S):
            reply = await target.backend.send(request)
            await take(reply, _MAX_REPLY_BYTES)
        if reply.status != 200:
            raise BackendError(f"backend {target.backend.name!r} answered {reply.status}")


def prewarms(attempt: Attempt) -> Target | None:
    """The target that has answered, where its next prompt may be sent ahead.

    Not with a client's key, which is not kept. Not to `/v1/responses`, which stores what it answers, nor where a
    budget for thinking has to be below the cap of one token.
    """
    prompt, name = attempt.prompt, attempt.exchange.progress.backend
    if not attempt.model.context.prewarm or prompt.dialect not in (CHAT, MESSAGES):
        return None
    if prompt.dialect is MESSAGES and prompt.fields.get("thinking") is not None:
        return None
    for target in attempt.targets:
        if target.backend.name == name:
            return target if target.backend.auth != "client" else None
    return None
