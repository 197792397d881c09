"""SmolLM2 as it is served: its prompts as tokens, for whoever keeps score, and as counts, for whoever cuts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from proxy.tokens.local import CountingPool
from proxy.tokens.memo import Memo
from proxy.tokens.template import ChatTemplate
from proxy.tokens.template_counter import TemplateCounter
from proxy.tokens.template_request import ServerFlags
from proxy.tokens.tokenizer_files import load
from tests.bench.histories import TOOLS
from tests.unit.tokens.template_models import SMOLLM, model_folder

TEMPLATE = Path(__file__).parents[1] / "engines" / "smollm2.jinja"
BLOCK = 16
"""Tokens of a block of the prefix cache, as in vLLM."""


class Served:
    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = model_folder(SMOLLM, Path(folder))
            self._template = ChatTemplate.load(files, ServerFlags(server="vllm"), template=TEMPLATE)
            self._tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
            self.counter = TemplateCounter(self._template, load(files), Memo(1_000_000), CountingPool(1))
        self._pieces: dict[str, list[int]] = {}

    def ids(self, messages: Sequence[Any]) -> list[int]:
        """The prompt's tokens, encoded piece by piece between special tokens, which gives the same and is faster."""
        text = self._template.render({"messages": list(messages), "tools": TOOLS}).text
        out: list[int] = []
        for piece in text.split("<|im_start|>"):
            if piece not in self._pieces:
                encoded = self._tokenizer.encode("<|im_start|>" + piece, add_special_tokens=False)
                self._pieces[piece] = encoded.ids
            out += self._pieces[piece] if piece else []
        return out

    def tokens(self, messages: Sequence[Any]) -> int:
        return len(self.ids(messages))


class PrefixCache:
    """Every block that was ever prefilled, known by all that came before it."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def cold(self, ids: Sequence[int]) -> int:
        """Tokens that are to be prefilled for this prompt; the last one always is."""
        chain, found = 0, 0
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            chain = hash((chain, tuple(ids[end - BLOCK : end])))
            if chain in self._known and found == end - BLOCK and end < len(ids):
                found = end
            self._known.add(chain)
        return len(ids) - found
