"""Whether a text has far more, or far fewer, tokens for its length than its model usually takes.

Whoever estimates tokens by characters is wrong there: 2,040 characters of Chinese are over 2,048 tokens for a
tokenizer of Llama 2's kind, and a server that truncates would cut them silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from backends.errors import BackendError
from proxy.tokens.counts import Counter

SAMPLE: Final = (
    "The council met on Tuesday to decide whether the old bridge should be repaired or replaced. Engineers had"
    " found cracks in two of its pillars, and the river had risen higher than in any spring since records began."
    " Most people who spoke wanted to keep it: they had crossed it on their way to school, and so had their"
    " parents. In the end a small majority voted for repairs, which are expected to take eighteen months."
)
"""English prose: what a model's usual ratio is measured on."""

USUAL: Final = 0.21
"""Tokens per character of such prose: 0.207 to 0.222 with the encodings of OpenAI, Llama 2 and 3, Mistral, Qwen,
DeepSeek, GLM, MiniMax and SmolLM2. Taken where a model's own cannot be had."""

DENSE: Final = 2.5
"""Times the usual. Code (1.2 to 1.5), JSON (up to 2.6) and European languages (up to 2.3) stay below, as measured
with those tokenizers; Chinese and Japanese (2.6 to 9), base64 (3.2 to 3.9) and emoji (6 to 16) are above."""
THIN: Final = 1 / 3
"""Times the usual. Runs of one character have 0.04 to 0.3; nothing that is written has less than 0.9."""

SHORTEST: Final = 100
"""Characters. In a shorter message its frame of 3 to 10 tokens would decide."""


async def remarks(counter: Counter, sizes: Sequence[tuple[int, int | None]]) -> list[str | None]:
    """A remark on each (characters, tokens), or None where there is nothing to say or the tokens are not known."""
    usual = await usual_ratio(counter)
    return [None if tokens is None else remark(characters, tokens, usual) for characters, tokens in sizes]


async def usual_ratio(counter: Counter) -> float:
    """Tokens per character of English prose with this counter's tokenizer. Remembered there like any text."""
    try:
        counts = await counter.count({"prompt": SAMPLE})
    except BackendError:
        return USUAL
    return counts.tokens / len(SAMPLE) if counts.tokens else USUAL


def remark(characters: int, tokens: int, usual: float = USUAL) -> str | None:
    """One sentence if the ratio is far from the usual one. Pure."""
    if characters < SHORTEST:
        return None
    times = tokens / characters / usual
    if times >= DENSE:
        return (
            f"{characters:,} characters are {tokens:,} tokens, {times:.1f} times as many as English prose of that"
            " length has: an estimate by characters falls short"
        )
    if times <= THIN:
        return (
            f"{characters:,} characters are only {tokens:,} tokens, {times:.2f} of what English prose of that"
            " length has: an estimate by characters is far too high"
        )
    return None
