"""Has a model write a summary: by parts where the record is long, with bounded tries, on a key that is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

import orjson

from backends.base import Target, UpstreamRequest
from backends.errors import BackendError
from backends.http_reply import take
from backends.json_bytes import json_bytes
from proxy import config
from proxy.dialects.chat import CHAT, is_reasoning
from proxy.exchange import Model
from proxy.history import summary
from proxy.history.summary import Summarized
from proxy.relay import TRY_NEXT

TRIES: Final = 2
PAUSE_S: Final = 1.0
LIMIT_S: Final = 120.0
"""For one question: a summary that takes longer would come too late for its boundary."""
UNKNOWN_WINDOW: Final = 8192
"""For a model whose window nobody tells: the least that served models have today."""
SMALLEST_PART: Final = 128
MAX_PARTS: Final = 64
MAX_ROUNDS: Final = 4
_MAX_REPLY_BYTES: Final = 1024 * 1024
_JSON: Final = [("Content-Type", "application/json")]


class SummaryFailed(Exception):
    """No summary was written. The message says why and holds no text of the conversation."""


class Models(Protocol):
    def find(self, name: str, caller: str, strategy: config.Strategy | None) -> Sequence[Model]: ...


class Summarizer:
    def __init__(self, models: Models) -> None:
        self._models = models

    async def write(self, work: Summarized, settings: config.Summary) -> str:
        """Raises SummaryFailed."""
        assert settings.model is not None
        found = self._models.find(settings.model, "", "keep")
        if not found:
            raise SummaryFailed(f"the model {settings.model!r} is not served here")
        writer = _Writer(found[0], settings.max_tokens)
        try:
            return await writer.whole(work.former, [text for text in work.texts if text])
        except BackendError as error:
            raise SummaryFailed(str(error)) from None


class _Writer:
    """One summary by one model."""

    def __init__(self, model: Model, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._asked = 0

    async def whole(self, former: str, texts: list[str]) -> str:
        """Map, then reduce: parts that fit are summarized alone, and then their summaries together."""
        room = await self._room(former)
        for _ in range(MAX_ROUNDS):
            pieces, tokens = await self._pieces(texts, room)
            parts = summary.parts(pieces, tokens, room)
            if len(parts) <= 1:
                return await self._ask(former, "\n\n".join(pieces))
            if len(parts) > MAX_PARTS:
                raise SummaryFailed(f"the record is too long: {sum(tokens)} tokens are {len(parts)} parts")
            texts = [await self._ask("", "\n\n".join(pieces[i] for i in part)) for part in parts]
        raise SummaryFailed(f"the record did not get short enough in {MAX_ROUNDS} rounds")

    async def _room(self, former: str) -> int:
        """Tokens of the record that one question may hold."""
        window = self._model.room_window or UNKNOWN_WINDOW
        bare = await self._model.counter.count({"messages": summary.questions(former, "-", self._max_tokens)})
        # A twentieth less: what is joined may take a few tokens more than its parts.
        room = int((window - bare.tokens - self._max_tokens) * 0.95)
        if room < SMALLEST_PART:
            raise SummaryFailed(
                f"the window of {self._model.name!r}, {window} tokens, leaves no room for a record"
            )
        return room

    async def _pieces(self, texts: Sequence[str], room: int) -> tuple[list[str], list[int]]:
        """The texts, those cut up that are longer than `room`, and the tokens of each piece."""
        weights = await self._weights(texts)
        if max(weights, default=0) <= room:
            return list(texts), weights
        pieces: list[str] = []
        for text, weight in zip(texts, weights, strict=True):
            rest = text
            # Less than the room: a message of its own weighs a little more than its text.
            while rest and weight > room and len(pieces) < MAX_PARTS * 4:
                head, _ = await self._model.counter.clip(rest, max(1, room * 3 // 4), 0)
                if not head or head == rest:
                    break
                pieces.append(head)
                rest = rest[len(head) :]
            if rest:
                pieces.append(rest)
        return pieces, await self._weights(pieces)

    async def _weights(self, texts: Sequence[str]) -> list[int]:
        messages = [{"role": "user", "content": text} for text in texts]
        units = [(i, i + 1) for i in range(len(messages))]
        return list(await self._model.counter.weigh({"messages": messages}, units))

    async def _ask(self, former: str, record: str) -> str:
        problem = "it has no target"
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE_S)
            for target in self._model.targets:
                text, problem, again = await self._send(target, former, record)
                if text:
                    return text
                if not again:
                    raise SummaryFailed(problem)
        raise SummaryFailed(problem)

    async def _send(self, target: Target, former: str, record: str) -> tuple[str, str, bool]:
        """(text, what went wrong, whether to try again)."""
        reasoning = is_reasoning(target.model)
        body: dict[str, Any] = {
            "model": target.model,
            "messages": summary.questions(former, record, self._max_tokens),
            CHAT.cap_names(reasoning=reasoning)[0]: self._max_tokens,
        }
        if not reasoning:  # those refuse a temperature
            body["temperature"] = 0
        name = target.backend.name
        try:
            async with asyncio.timeout(LIMIT_S):
                reply = await target.backend.send(UpstreamRequest("POST", CHAT.path, _JSON, json_bytes(body)))
                data = await take(reply, _MAX_REPLY_BYTES)
        except TimeoutError:
            return "", f"backend {name!r} took more than {LIMIT_S:g} s", True
        except BackendError as error:
            return "", str(error), True
        if reply.status != 200:
            return "", f"backend {name!r} answered {reply.status}", reply.status in TRY_NEXT
        text = summary.clean(_content(data))
        return text, "" if text else f"backend {name!r} wrote nothing", True


def _content(data: bytes) -> str:
    try:
        content = orjson.loads(data)["choices"][0]["message"]["content"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""
    return content if isinstance(content, str) else ""
