"""Whether an engine really answers: one token out of it, and then the prompts that are to be warm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from backends.base import UpstreamRequest
from backends.errors import BackendError
from backends.http import HttpBackend
from backends.http_reply import take
from backends.json_bytes import json_bytes
from backends.oracle import OWN_AGENT

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_MAX_ANSWER_BYTES = 1024 * 1024
_WARM_S = 60.0
_JSON = (("Content-Type", "application/json"), OWN_AGENT)
_NO_COMPLETIONS = frozenset((400, 404, 405, 501))
"""What models that only embed or classify answer to a completion."""


class NoAnswer(Exception):
    """It listens, and does not answer what it must. In the engine's own words."""


async def listening(backend: HttpBackend) -> None:
    """Returns when `/health` says yes."""
    while True:
        try:
            if (await _ask(backend, "GET", "/health", None))[0] == 200:
                return
        except BackendError:
            pass
        await asyncio.sleep(_POLL_S)


async def first_token(backend: HttpBackend, model: str) -> None:
    """Raises NoAnswer, BackendError."""
    question = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    status, answer = await _ask(backend, "POST", "/v1/completions", question)
    if status == 200 and isinstance(answer, dict) and answer.get("choices"):
        return
    if status in _NO_COMPLETIONS:
        embedded, _ = await _ask(backend, "POST", "/v1/embeddings", {"model": model, "input": "1"})
        if embedded == 200:
            return
    raise NoAnswer(f"it does not answer a completion of one token (status {status}): {_message(answer)}")


async def warm(backend: HttpBackend, model: str, system_prompts: Sequence[str]) -> None:
    """Each prompt's prefix into the engine's prefix cache. What fails is told, and costs no one the start."""
    for number, prompt in enumerate(system_prompts, 1):
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": "1"}]
        question = {"model": model, "messages": messages, "max_tokens": 1}
        try:
            async with asyncio.timeout(_WARM_S):
                status, _ = await _ask(backend, "POST", "/v1/chat/completions", question)
        except (BackendError, TimeoutError) as error:
            status = type(error).__name__
        if status != 200:
            logger.warning("backend %r: warm prompt %d was not taken (%s)", backend.name, number, status)


async def _ask(
    backend: HttpBackend, method: str, path: str, question: Mapping[str, Any] | None
) -> tuple[int | str, Any]:
    body = json_bytes(question) if question is not None else None
    reply = await backend.send(UpstreamRequest(method, path, _JSON if body else [OWN_AGENT], body))
    data = await take(reply, _MAX_ANSWER_BYTES)
    try:
        return reply.status, orjson.loads(data) if data else None
    except orjson.JSONDecodeError:
        return reply.status, None


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    text = error.get("message") if isinstance(error, dict) else None
    return text[:300] if isinstance(text, str) else "no reason given"
