"""Counting prompts here, with OpenAI's rules and encodings: the `Counter` for models whose rules we know.

Small work is done at once; what would hold up the event loop goes to a small pool of niced threads, where
tiktoken releases the interpreter lock while it encodes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from proxy.tokens.clip import Cut, characters_to_count, remembered_cut
from proxy.tokens.counts import Counts
from proxy.tokens.encodings import encoding, encoding_name
from proxy.tokens.memo import Memo
from proxy.tokens.openai import Cost, PromptCosts, family, message_weights, prompt_costs
from proxy.tokens.plain import PlainPrompt, plain_prompt
from proxy.tokens.text import TextCounter

_T = TypeVar("_T")

# About 1 ms of encoding (12 to 23 MB/s, shared/facts/tokens.md section 3).
INLINE_CHARACTERS = 16 * 1024
# What may be rendered and looked up on the event loop: a millisecond or so, mostly hashing and, for results
# of parallel calls, reading JSON.
INLINE_BODY_CHARACTERS = 256 * 1024
INLINE_NODES = 10_000
INLINE_MESSAGES = 1000

NICENESS = 10


class CountingPool:
    """Threads for counting, few and niced: requests that need no counting come first."""

    def __init__(self, workers: int = 2) -> None:
        self._threads = ThreadPoolExecutor(workers, "tokens", initializer=_be_nice)

    async def run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run `work` in a thread. Cancelled before its turn, it is not run at all."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        """Drop what waits and let running counts end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _be_nice() -> None:
    # On Linux a thread has a niceness of its own, under its native id; elsewhere this may fail or be refused.
    with suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)


@dataclass(slots=True)
class _Found:
    """What is known of a prompt without encoding anything, and the texts that are still to be encoded."""

    tokens: int = 0
    missing: list[str] = field(default_factory=list)
    unsure: tuple[str, ...] = ()


class LocalCounter:
    """Counts prompts for one model. The encoding is built here, so build counters at start."""

    def __init__(self, model: str, its_encoding: str | None, memo: Memo, pool: CountingPool) -> None:
        rules = family(model)
        self._known = bool(its_encoding) or encoding_name(model) is not None
        # An encoding that was named is meant: the model's family is no guess then.
        self._family = rules
        if its_encoding:
            known = tuple(reason for reason in rules.unsure if not reason.startswith("unknown model"))
            self._family = replace(rules, encoding=its_encoding, unsure=known)
        self._memo = memo
        self._text = TextCounter(encoding(self._family.encoding), memo)
        self._pool = pool

    @property
    def encoded_tokens(self) -> int:
        """Tokens really made so far: the work done."""
        return self._text.encoded_tokens

    async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
        """Count a whole chat request body; stop early once it is sure to be over `limit` tokens."""
        if not is_small(body):
            return await self._pool.run(self._count_body, body, limit)
        found = self._look_up(self._costs(body))
        if sum(map(len, found.missing)) > INLINE_CHARACTERS:
            return await self._pool.run(self._finish, found, limit)
        return self._finish(found, limit)

    async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]] = ()) -> Sequence[int]:
        """Tokens of each message, rendered on its own as an old turn. The rules find the units themselves."""
        given = body.get("messages")
        messages = given if isinstance(given, list) else []
        if not is_small(messages):
            return await self._pool.run(self._weigh_messages, messages)
        costs = message_weights(messages, self._family)
        if self._much_is_missing(costs):
            return await self._pool.run(self._weigh, costs)
        return self._weigh(costs)

    async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
        """A beginning and an end of so many tokens at most."""
        if characters_to_count(text, head_tokens, tail_tokens) > INLINE_CHARACTERS:
            cut = await self._pool.run(self._clip, text, head_tokens, tail_tokens)
        else:
            cut = self._clip(text, head_tokens, tail_tokens)
        return text[: cut.head], text[cut.tail :]

    def _clip(self, text: str, head_tokens: int, tail_tokens: int) -> Cut:
        name, count = self._text.encoding_name, self._text.count_anew
        return remembered_cut(self._memo, name, count, text, head_tokens, tail_tokens)

    def _count_body(self, body: Mapping[str, Any], limit: int | None) -> Counts:
        return self._finish(self._look_up(self._costs(body)), limit)

    def _costs(self, body: Mapping[str, Any]) -> PromptCosts:
        prompt = plain_prompt(body)
        return prompt_costs(body, self._family) if prompt is None else PromptCosts(self._plain(prompt), ())

    def _plain(self, prompt: PlainPrompt) -> Cost:
        """Nothing is added to a text. How names of special tokens in it are read is nowhere said."""
        reasons = list(prompt.unsure)
        if not self._known:
            reasons.append("unknown model, counted like gpt-4o")
        if any(map(self._text.special_in, prompt.texts)):
            reasons.append("the name of a special token in a plain prompt")
        if "" in prompt.texts:
            reasons.append("an empty prompt")
        return Cost(prompt.ids, tuple(filter(None, prompt.texts)), tuple(reasons))

    def _weigh_messages(self, messages: Sequence[Any]) -> Sequence[int]:
        return self._weigh(message_weights(messages, self._family))

    def _much_is_missing(self, costs: Iterable[Cost]) -> bool:
        missing = 0
        for cost in costs:
            for text in cost.texts:
                if self._text.known(text) is None:
                    missing += len(text)
                    if missing > INLINE_CHARACTERS:
                        return True
        return False

    def _look_up(self, costs: PromptCosts) -> _Found:
        found = _Found()
        known = self._text.known
        reasons: dict[str, None] = {}
        for cost in (costs.head, *costs.messages):
            found.tokens += cost.tokens
            if cost.unsure:
                reasons.update(dict.fromkeys(cost.unsure))
            for text in cost.texts:
                tokens = known(text)
                if tokens is None:
                    found.missing.append(text)
                else:
                    found.tokens += tokens
        found.unsure = tuple(reasons)
        return found

    def _finish(self, found: _Found, limit: int | None) -> Counts:
        if limit is None:
            tokens = found.tokens + sum(map(self._text.count, found.missing))
            return Counts(tokens, unsure=found.unsure)
        rest = self._text.count_upto(found.missing, limit - found.tokens)
        return Counts(found.tokens + rest.tokens, rest.complete, found.unsure)

    def _weigh(self, costs: Sequence[Cost]) -> Sequence[int]:
        count = self._text.count
        return [cost.tokens + sum(map(count, cost.texts)) for cost in costs]


def is_small(value: Any) -> bool:
    """Whether a JSON value is small enough to be worked on at once: few nodes, little text."""
    if isinstance(value, Mapping):
        messages = value.get("messages")
        if isinstance(messages, list) and len(messages) > INLINE_MESSAGES:
            return False
    elif isinstance(value, list) and len(value) > INLINE_MESSAGES:
        return False
    nodes = characters = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        nodes += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        if characters > INLINE_BODY_CHARACTERS or nodes + len(waiting) > INLINE_NODES:
            return False
    return True
