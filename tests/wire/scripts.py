"""What a scripted upstream answers in the tests with OpenAI's SDKs."""

from __future__ import annotations

from typing import Any

from openai.types.chat import ChatCompletionToolParam

from tests.fakes.upstream import Answer, completion, json_answer

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL: dict[str, Any] = {
    **completion(),
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
        }
    ],
}
MODELS = {
    "object": "list",
    "data": [
        {"id": name, "object": "model", "created": 1, "owned_by": "openai"}
        for name in ("gpt-4o", "gpt-4o-mini")
    ],
}


def refused(status: int, code: str) -> Answer:
    """An upstream's own error."""
    error = {"message": f"refused with {status}", "type": "its_own", "param": None, "code": code}
    return json_answer({"error": error}, status, [("x-request-id", "upstream's")])
