"""Request bodies that the wire tests send."""

from __future__ import annotations

import json
from typing import Any


def chat(content: str = "hi", *, model: str = "gpt-4o", **fields: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **fields}).encode()


def conversation(turns: int, words: int = 60, *, model: str = "gpt-4o", **fields: Any) -> dict[str, Any]:
    """A system prompt and `turns` turns, the last one unanswered."""
    messages = [{"role": "system", "content": "You are a patient assistant."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why is that so " * (words // 4)})
        if turn < turns - 1:
            messages.append(
                {"role": "assistant", "content": f"Answer {turn}: " + "because of it " * (words // 3)}
            )
    return {"model": model, "messages": messages, **fields}
