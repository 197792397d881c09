"""Two hundred conversations of every kind on real engines: each count equals what the engine reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import StartProxy
from tests.live import matrix
from tests.live.matrix import Compared
from tests.proxy_fixture import Proxy
from tests.unit.tokens.template_models import SMOLLM, model_folder

COUNT = 204
LEAST = 200

BOTH_WAYS = """
[admin]
port = 0
[[backends]]
name = "embedded"
kind = "embedded"
threads = 2
[[models]]
name = "smollm2"
targets = [{{ backend = "embedded" }}]
[[models]]
name = "local"
targets = [{{ backend = "embedded" }}]
tokenizer = "{files}"
chat_template = {{ server = "llama.cpp" }}
"""


def check(compared: Sequence[Compared]) -> None:
    """Every count is right, and what has no answer was refused by the engine itself."""
    assert [one for one in compared if one.reported is not None and one.counted != one.reported] == []
    refused = [one for one in compared if one.reported is None]
    assert [one for one in refused if one.status != 400 or not one.by_engine] == []
    assert len(compared) - len(refused) >= LEAST


def check_template(compared: Sequence[Compared], told: Sequence[dict[str, Any]]) -> None:
    """The same of what `explain` told, which no reply has corrected; and every count says that it is exact."""
    both = [
        (one, count["tokens"], count["unsure"])
        for one, count in zip(compared, told, strict=True)
        if one.reported is not None
    ]
    assert [(one, tokens) for one, tokens, _ in both if tokens != one.reported] == []
    assert [(one, unsure) for one, _, unsure in both if unsure] == []


async def test_llama_cpp_counts_as_its_oracle_and_as_its_template_do(
    start_proxy: StartProxy, tmp_path: Path
) -> None:
    proxy = await start_proxy(BOTH_WAYS.format(files=model_folder(SMOLLM, tmp_path)))
    bodies = matrix.conversations(COUNT)
    told = await matrix.explain(proxy, bodies, model="local")
    compared = await matrix.compare(proxy, bodies, at_once=4)
    check(compared)
    check_template(compared, told)


async def test_vllm_counts_as_its_template_does(vllm_proxy: Proxy) -> None:
    bodies = matrix.conversations(COUNT)
    told = await matrix.explain(vllm_proxy, bodies, model="smollm2")
    compared = await matrix.compare(vllm_proxy, bodies, at_once=8)
    check(compared)
    check_template(compared, told)
