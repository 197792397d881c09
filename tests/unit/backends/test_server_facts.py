from __future__ import annotations

from typing import Any

import pytest

from backends.server_facts import ServerFacts, is_llama_cpp, read, slot_window


def card(name: str, owner: str = "vllm", **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": owner, **more}


def test_vllm_tells_its_windows_and_an_adapter_has_its_parents() -> None:
    facts = read(
        [card("base", root="/m", max_model_len=4096), card("lora", parent="base", max_model_len=None)]
    )
    assert facts.software == "vllm"
    assert facts.windows == {"base": 4096, "lora": 4096}
    assert facts.roots == {"base": "/m"}


def test_llama_cpp_tells_the_window_of_a_slot_elsewhere() -> None:
    entries = [card("x", "llamacpp", meta={"n_ctx_train": 32768})]
    assert is_llama_cpp(entries)
    window = slot_window({"default_generation_settings": {"n_ctx": 2048}})
    assert read(entries, window) == ServerFacts("llama.cpp", {"x": 2048})


def test_others_may_tell_a_window_and_count_nothing() -> None:
    assert read([card("x", "sglang", max_model_len=1024)]) == ServerFacts("", {"x": 1024})
    assert read([card("gpt-4o", "openai")]) == ServerFacts()


@pytest.mark.parametrize("odd", ["4096", True, -1, 0, 1.5, {}])
def test_a_window_that_is_no_number_of_tokens_is_none(odd: object) -> None:
    assert read([card("x", max_model_len=odd)]).windows == {}


@pytest.mark.parametrize("odd", [{}, {"default_generation_settings": 1}, {"default_generation_settings": {}}])
def test_props_without_a_window_have_none(odd: dict[str, Any]) -> None:
    assert slot_window(odd) is None
