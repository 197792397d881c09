"""Our counts against what the API itself reported, for requests recorded by others (shared/facts)."""

import base64
import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.encodings import encoding
from proxy.tokens.openai import family, prompt_costs

TRUTH = Path(__file__).parents[3].parent / "shared/facts/openai_token_truth.json"
pytestmark = pytest.mark.skipif(not TRUTH.exists(), reason=f"{TRUTH.name} is not beside this checkout")

# What the recordings' own notes set apart: files and sound (their bytes are cut out), models that bill by
# other rules, and how gpt-3.5-turbo was served in 2023.
SET_APART = ("audio/file part", "search-preview", "2023 serving")


def countable(row: dict[str, Any]) -> bool:
    """Whether shared/facts/tokens.md, 1.9, says that a request can be counted at all."""
    note = row.get("note", "")
    return not any(reason in note for reason in SET_APART) and "audio" not in row["request"]


def png(width: int, height: int) -> str:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\2\0\0\0"
    return "data:image/png;base64," + base64.b64encode(header).decode()


def with_images(request: dict[str, Any]) -> dict[str, Any]:
    """The request with a picture of the right size where the recording has only its size."""
    request = copy.deepcopy(request)
    for message in request["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            size = part.pop("_image_size", None)
            if size:
                part["image_url"]["url"] = png(*size)
    return request


def counted(request: dict[str, Any], model: str) -> tuple[int, tuple[str, ...]]:
    rules = family(model)
    costs = prompt_costs(request, rules)
    total = 0
    unsure: list[str] = []
    for cost in (costs.head, *costs.messages):
        total += cost.tokens
        total += sum(len(encoding(rules.encoding).encode(t, disallowed_special=())) for t in cost.texts)
        unsure += cost.unsure
    return total, tuple(unsure)


def test_recorded_requests_are_counted_exactly() -> None:
    rows = [row for row in json.loads(TRUTH.read_text()) if countable(row)]
    exact, sure, sure_exact, wrong = 0, 0, 0, []
    for row in rows:
        tokens, unsure = counted(with_images(row["request"]), row["model"])
        right = tokens == row["prompt_tokens"]
        exact += right
        sure += not unsure
        sure_exact += right and not unsure
        if not right:
            wrong.append((row["id"], row["model"], tokens - row["prompt_tokens"], unsure))
    assert exact >= 0.97 * len(rows), wrong
    assert sure_exact >= 0.995 * sure, wrong
    # Doubt is worth something only where it is rare.
    assert sure >= 0.9 * len(rows)
