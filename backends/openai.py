"""OpenAI, and anything that speaks its API at a `base_url`; servers that tell more of themselves are asked."""

from __future__ import annotations

from contextlib import suppress

from yarl import URL

from backends import server_facts
from backends.base import Oracle, RefusedList
from backends.errors import BadReply, Uncountable
from backends.http import HttpBackend, HttpOptions
from backends.oracle import OWN_AGENT, LlamaOracle, VllmOracle, asker
from backends.server_facts import ServerFacts

OPENAI_BASE_URL = "https://api.openai.com/v1"
OPENAI_KEEPALIVE_S = 60.0
"""OpenAI's edge keeps idle connections for minutes; a TLS handshake for each turn would be seen."""

_FOR_GOOD = frozenset((401, 403, 404, 405))
"""Refusals of `/v1/models` that asking again does not change."""
_A_CHAT = {"messages": [{"role": "user", "content": "1"}]}


class OpenAIBackend(HttpBackend):
    """The general upstream. vLLM and llama.cpp also tell their windows and count prompts."""

    def __init__(self, options: HttpOptions) -> None:
        super().__init__(options)
        self._facts = ServerFacts()
        self._counts = False
        self._root_url = options.base_url.rstrip("/").removesuffix("/v1")
        self._ask = asker(self)

    def url(self, path: str) -> URL:
        """What does not begin with `/v1` is the server's own, beside its API."""
        return super().url(path) if path.startswith("/v1") else URL(self._root_url + path, encoded=True)

    def window_tokens(self, model: str) -> int | None:
        return self._facts.windows.get(model)

    def oracle(self, model: str) -> Oracle | None:
        return self._oracle(self._facts, model) if self._counts else None

    def _oracle(self, facts: ServerFacts, model: str) -> Oracle | None:
        if facts.software == "vllm":
            return VllmOracle(self._ask, model)
        return LlamaOracle(self._ask) if facts.software == "llama.cpp" else None

    @property
    def tells(self) -> bool:
        """OpenAI itself tells neither windows nor counts, and would only be asked in vain."""
        return self._options.base_url.rstrip("/") != OPENAI_BASE_URL

    async def learn(self) -> bool:
        try:
            entries = await self.list_models([OWN_AGENT])
        except RefusedList as refused:
            if refused.status not in _FOR_GOOD:
                raise BadReply(f"backend {self.name!r} answered /v1/models with {refused.status}") from None
            # It wants the client's own key, which we do not have between requests, or has no such list.
            entries = []
        slot = None
        if server_facts.is_llama_cpp(entries):
            with suppress(Uncountable):
                slot = server_facts.slot_window(await self._ask("/props", None))
        facts = server_facts.read(entries, slot)
        counts = bool(entries) and await self._can_count(self._oracle(facts, entries[0]["id"]))
        changed = (facts, counts) != (self._facts, self._counts)
        self._facts, self._counts = facts, counts
        return changed

    async def _can_count(self, oracle: Oracle | None) -> bool:
        """Tried out: what stands before a server may let nothing but its API through."""
        if oracle is None:
            return False
        try:
            return await oracle.prompt_tokens(_A_CHAT) > 0
        except (Uncountable, BadReply):
            return False
