"""What an upstream's `/v1/models` says of the server itself: whose software it is, and its windows. Pure.

Sources: vLLM's and SGLang's model cards (`owned_by`, `max_model_len`, `parent` of an adapter), llama.cpp's
server README (`owned_by` "llamacpp"; the window of a slot is in `/props`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Software = Literal["", "vllm", "llama.cpp"]
_OWNERS: Mapping[object, Software] = {"vllm": "vllm", "llamacpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`windows` in tokens and `roots` (what is loaded) by model name. Software is "" where it counts nothing for us."""

    software: Software = ""
    windows: Mapping[str, int] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)


def read(entries: Sequence[Mapping[str, Any]], slot_window: int | None = None) -> ServerFacts:
    """From the entries of `/v1/models`; `slot_window` is what llama.cpp's `/props` gives each slot."""
    software: Software = ""
    windows: dict[str, int] = {}
    parents: dict[str, str] = {}
    for entry in entries:
        name = entry["id"]
        software = software or _owner(entry)
        window = _tokens(entry.get("max_model_len", slot_window))
        if window is not None:
            windows[name] = window
        elif isinstance(entry.get("parent"), str):
            parents[name] = entry["parent"]
        elif slot_window is not None:
            windows[name] = slot_window
    for name, parent in parents.items():
        if parent in windows:
            windows[name] = windows[parent]
    roots = {entry["id"]: entry["root"] for entry in entries if isinstance(entry.get("root"), str)}
    return ServerFacts(software, windows, roots)


def is_llama_cpp(entries: Sequence[Mapping[str, Any]]) -> bool:
    return any(_owner(entry) == "llama.cpp" for entry in entries)


def slot_window(props: Mapping[str, Any]) -> int | None:
    """`n_ctx` of llama.cpp's `/props`: tokens of one slot, not of all of them together."""
    settings = props.get("default_generation_settings")
    return _tokens(settings.get("n_ctx")) if isinstance(settings, Mapping) else None


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _owner(entry: Mapping[str, Any]) -> Software:
    owner = entry.get("owned_by")
    return _OWNERS.get(owner, "") if isinstance(owner, str) else ""
