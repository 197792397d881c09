"""Servers that count a prompt when asked: llama.cpp and vLLM. Each gives the number it will report as usage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import orjson

from backends.base import UpstreamRequest
from backends.errors import BadReply, Uncountable
from backends.http import HttpBackend
from backends.http_reply import take
from backends.json_bytes import json_bytes

_MAX_ANSWER_BYTES = 256 * 1024 * 1024

Ask: TypeAlias = Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]]
"""(path, JSON to POST or None to GET) → the JSON object of a 200. Raises BackendError, Uncountable otherwise."""


def asker(backend: HttpBackend) -> Ask:
    async def ask(path: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
        if question is None:
            request = UpstreamRequest("GET", path, [OWN_AGENT])
        else:
            try:
                body = json_bytes(question)
            except RecursionError:
                raise Uncountable("nested too deep to be asked about") from None
            request = UpstreamRequest("POST", path, _JSON, body)
        reply = await backend.send(request)
        data = await take(reply, _MAX_ANSWER_BYTES)
        if reply.status != 200:
            raise Uncountable(f"backend {backend.name!r} would not count this prompt (status {reply.status})")
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise BadReply(f"backend {backend.name!r} answered {path} with something that is no JSON object")
        return answer

    return ask


class LlamaOracle:
    """llama.cpp's server: it renders and tokenizes by `/v1/chat/completions/input_tokens` and `/tokenize`."""

    scope = ""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        if "messages" not in body and isinstance(body.get("prompt"), str):
            # As its completions do: with the model's BOS, and special tokens read as such.
            return await self._tokenize({"content": body["prompt"], "add_special": True})
        answer = await self._ask("/v1/chat/completions/input_tokens", body)
        return _whole(answer.get("input_tokens"))

    async def text_tokens(self, text: str) -> int:
        return await self._tokenize({"content": text})

    async def _tokenize(self, question: Mapping[str, Any]) -> int:
        tokens = (await self._ask("/tokenize", question)).get("tokens")
        if not isinstance(tokens, list):
            raise BadReply("the server gave no tokens")
        return len(tokens)


class VllmOracle:
    """vLLM's `/tokenize` (its online serving docs, "Tokenizer API"), which renders a conversation like a chat."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask = ask
        self._model = model

    @property
    def scope(self) -> str:
        return self._model

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        if "messages" not in body and isinstance(body.get("prompt"), str):
            return await self._text(body["prompt"], special=body.get("add_special_tokens", True))
        return await self._count(chat_question(body, self._model))

    async def text_tokens(self, text: str) -> int:
        return await self._text(text, special=False)

    async def _text(self, text: str, *, special: Any) -> int:
        return await self._count({"model": self._model, "prompt": text, "add_special_tokens": special})

    async def _count(self, question: Mapping[str, Any]) -> int:
        return _whole((await self._ask("/tokenize", question)).get("count"))


_AS_THEY_ARE = ("messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")
_FOR_TEMPLATES = ("documents", "reasoning_effort")


def chat_question(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A chat body as `/tokenize` takes it. Pure.

    What a chat hands to the template as variables of its own has to be said here as `chat_template_kwargs`
    (vLLM 0.32, entrypoints/openai/chat_completion/protocol.py, `build_chat_params`).
    """
    question: dict[str, Any] = {"model": model}
    for key in (*_AS_THEY_ARE, "chat_template", "mm_processor_kwargs", "media_io_kwargs"):
        if body.get(key) is not None:
            question[key] = body[key]
    given = body.get("chat_template_kwargs")
    own = dict(given) if isinstance(given, Mapping) else {}
    kwargs = {key: body[key] for key in _FOR_TEMPLATES if body.get(key) is not None}
    if "reasoning_effort" in kwargs and "enable_thinking" not in own:
        kwargs["enable_thinking"] = kwargs["reasoning_effort"] != "none"
    if own or kwargs:
        question["chat_template_kwargs"] = own | kwargs
    return question


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadReply("the server gave no count")
    return value


OWN_AGENT = ("User-Agent", "chatfuse")
"""Says to an upstream's log that this question is the proxy's own, and no client's."""
_JSON = (("Content-Type", "application/json"), OWN_AGENT)
