"""What the wire tests send and answer in each dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.upstream import completion


@dataclass(frozen=True)
class Spoken:
    """One dialect: a request, its cap, and what an upstream answers to it."""

    path: str
    prompt: Mapping[str, Any]
    """What asks "Say something: word word word ..." with `WORDS` words."""
    cap: str
    answer: Mapping[str, Any]
    """With 9 tokens of prompt, 2 of completion and 4 cached."""
    stream: Sequence[bytes]
    """The same in events."""
    asks_usage: bool = False
    """Usage comes in streams only if it is asked for."""

    def body(self, **fields: Any) -> bytes:
        return json.dumps({"model": "gpt-4o", **self.prompt, **fields}, ensure_ascii=False).encode()


def event(value: Mapping[str, Any], kind: str = "") -> bytes:
    head = f"event: {kind}\n" if kind else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


WORDS = 100
TEXT = "Say something: " + "word " * WORDS
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "total_tokens": 11,
    "prompt_tokens_details": {"cached_tokens": 4},
}
OF_RESPONSE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 11,
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-4o",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello!", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": OF_RESPONSE,
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "gpt-4o",
    "content": [{"type": "text", "text": "Hello!"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 2},
}
TEXT_COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "text": "Hello!", "finish_reason": "stop", "logprobs": None}],
}
DONE = b"data: [DONE]\n\n"

SPOKEN = (
    Spoken(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": TEXT}]},
        "max_tokens",
        {**completion(), "usage": USAGE},
        (
            event({**completion(), "choices": [{"index": 0, "delta": {"content": "Grüße"}}], "usage": None}),
            event({**completion(), "choices": [], "usage": USAGE}),
            DONE,
        ),
        asks_usage=True,
    ),
    Spoken(
        "/v1/completions",
        {"prompt": TEXT},
        "max_tokens",
        {**TEXT_COMPLETION, "usage": USAGE},
        (event(TEXT_COMPLETION), event({**TEXT_COMPLETION, "choices": [], "usage": USAGE}), DONE),
        asks_usage=True,
    ),
    Spoken(
        "/v1/responses",
        {"input": [{"role": "user", "content": TEXT}]},
        "max_output_tokens",
        RESPONSE,
        (
            event({"type": "response.created", "response": {**RESPONSE, "usage": None}}, "response.created"),
            event({"type": "response.output_text.delta", "delta": "Grüße"}, "response.output_text.delta"),
            event({"type": "response.completed", "response": RESPONSE}, "response.completed"),
        ),
    ),
    Spoken(
        "/v1/messages",
        {"messages": [{"role": "user", "content": TEXT}]},
        "max_tokens",
        MESSAGE,
        (
            event(
                {
                    "type": "message_start",
                    "message": {
                        **MESSAGE,
                        "content": [],
                        "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 1},
                    },
                },
                "message_start",
            ),
            event({"type": "ping"}, "ping"),
            event(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüße"}},
                "content_block_delta",
            ),
            event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 2},
                },
                "message_delta",
            ),
            event({"type": "message_stop"}, "message_stop"),
        ),
    ),
)
IDS = [each.path.removeprefix("/v1/") for each in SPOKEN]
