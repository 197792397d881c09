"""A conversation that grows over a scripted upstream, with history that is cut, summarized and sent ahead."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.fakes.upstream import Received, ScriptedUpstream
from tests.proxy_fixture import Proxy

CONFIG = """
[admin]
port = 0
[[backends]]
name = "up"
kind = "openai"
base_url = "{url}"
auth = "{auth}"
[[models]]
name = "gpt-4o"
targets = [{{ backend = "up" }}]
window = 4_000
context = {{ strategy = "{strategy}", budget_tokens = 600{context} }}
[[models]]
name = "gpt-4o-mini"
targets = [{{ backend = "up", model = "the-writer" }}]
window = {window}
"""
SUMMARY = '{ model = "gpt-4o-mini", max_tokens = 60, start_at = 0.6 }'
MEMORY = "Ann is 40 and lives in Oslo."


def config(
    upstream: ScriptedUpstream,
    context: str,
    *,
    strategy: str = "summarize",
    auth: str = "none",
    window: int = 4000,
) -> str:
    """A model with a small budget, and one that writes; `context` is put behind the budget."""
    return CONFIG.format(url=upstream.base_url, auth=auth, strategy=strategy, context=context, window=window)


def is_question(request: Received) -> bool:
    return bool(request.json["model"] == "the-writer")


class Talk:
    """A conversation that grows by a turn with each request."""

    def __init__(
        self, proxy: Proxy, upstream: ScriptedUpstream, key: str = "k", path: str = "/chat/completions"
    ) -> None:
        self.proxy = proxy
        self.upstream = upstream
        self.key = key
        self.path = path
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]

    async def turn(self, text: str = "") -> dict[str, str]:
        number = len(self.messages) // 2
        self.messages.append(
            {"role": "user", "content": text or f"Question {number}: " + "why is it so " * 12}
        )
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self.proxy.base_url}{self.path}",
                json={"model": "gpt-4o", "messages": self.messages},
                headers={"Authorization": f"Bearer {self.key}"},
            ) as answer,
        ):
            assert answer.status == 200, await answer.text()
            headers = {k.lower(): v for k, v in answer.headers.items()}
        self.messages.append({"role": "assistant", "content": f"Answer {number}: " + "because of that " * 8})
        await self.settled()
        return headers

    async def settled(self) -> None:
        parts = self.proxy.running.crew._worker._parts  # type: ignore[attr-defined]
        await parts.ahead.settled()
        await parts.summaries.settled()

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What the upstream got as the last chat."""
        last = [request for request in self.upstream.received if not is_question(request)][-1]
        messages: list[dict[str, Any]] = last.json["messages"]
        return messages

    def questions(self) -> list[Received]:
        return [request for request in self.upstream.received if is_question(request)]


async def nothing() -> None:
    """In place of `Talk.settled`, for who does not wait."""
