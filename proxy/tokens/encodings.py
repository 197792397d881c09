"""OpenAI's encodings, built from the ranks we ship, and which one a model uses.

`tiktoken.get_encoding` would download rank files at first use, inside a request; here nothing touches the
network or a cache folder. Patterns and special tokens are those of tiktoken 0.14.0's
tiktoken_ext/openai_public.py, and a test compares them with the installed one.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

import tiktoken
from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

from proxy.tokens import ranks

R50K_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

END_OF_TEXT, END_OF_PROMPT = "<|endoftext|>", "<|endofprompt|>"
FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX = "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"

_HARMONY_NAMED = {
    "<|startoftext|>": 199998,
    END_OF_TEXT: 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    # Reserved like its neighbours, but o200k_base's name for it comes last in the table and is known too.
    END_OF_PROMPT: 200018,
}
_HARMONY_RESERVED = (200000, 200001, 200004, 200009, 200010, 200011, *range(200013, 201088))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an encoding is made of: the rank file, the splitting pattern, the special tokens."""

    ranks: str
    pattern: str
    special: dict[str, int]


RECIPES = {
    "o200k_base": Recipe("o200k_base", O200K_PATTERN, {END_OF_TEXT: 199999, END_OF_PROMPT: 200018}),
    "o200k_harmony": Recipe(
        "o200k_base", O200K_PATTERN, _HARMONY_NAMED | {f"<|reserved_{n}|>": n for n in _HARMONY_RESERVED}
    ),
    "cl100k_base": Recipe(
        "cl100k_base",
        CL100K_PATTERN,
        {
            END_OF_TEXT: 100257,
            FIM_PREFIX: 100258,
            FIM_MIDDLE: 100259,
            FIM_SUFFIX: 100260,
            END_OF_PROMPT: 100276,
        },
    ),
    "p50k_base": Recipe("p50k_base", R50K_PATTERN, {END_OF_TEXT: 50256}),
    "p50k_edit": Recipe(
        "p50k_base",
        R50K_PATTERN,
        {END_OF_TEXT: 50256, FIM_PREFIX: 50281, FIM_MIDDLE: 50282, FIM_SUFFIX: 50283},
    ),
    "r50k_base": Recipe("r50k_base", R50K_PATTERN, {END_OF_TEXT: 50256}),
}
ALIASES = {"gpt2": "r50k_base"}  # the same tokens and ranks, published twice

_built: dict[str, tiktoken.Encoding] = {}
_loaded: dict[str, dict[bytes, int]] = {}  # the very objects that the encodings hold: no second copy
_building = threading.Lock()


def encoding(name: str) -> tiktoken.Encoding:
    """The encoding of that name, built at the first call (o200k_base: a quarter of a second) and kept."""
    name = ALIASES.get(name, name)
    found = _built.get(name)
    if found is not None:
        return found
    with _building:
        if name not in _built:
            recipe = RECIPES.get(name)
            if recipe is None:
                raise ValueError(f"unknown encoding {name!r}; known: {', '.join([*RECIPES, *ALIASES])}")
            if recipe.ranks not in _loaded:
                _loaded[recipe.ranks] = ranks.load(recipe.ranks)
            _built[name] = tiktoken.Encoding(
                name,
                pat_str=recipe.pattern,
                mergeable_ranks=_loaded[recipe.ranks],
                special_tokens=recipe.special,
            )
        return _built[name]


# Who may stand before a model's name ("openai/gpt-4o", "azure:gpt-4o", "openrouter/openai/gpt-4o").
# Another vendor's prefix says that the model is that vendor's, whatever its name resembles.
_VENDOR = re.compile(r"^(?:(?:openai|azure|azure[_-]?openai|openrouter|github|litellm|models)[/:.])+")

# Families newer than tiktoken's tables, or that its prefixes get wrong: "ft:gpt-4.1" falls under its
# "ft:gpt-4", cl100k. First match wins.
_NEWER = (
    ("gpt-oss", "o200k_harmony"),
    ("gpt-4o", "o200k_base"),
    ("gpt-4.", "o200k_base"),
    ("chatgpt", "o200k_base"),
    ("gpt-audio", "o200k_base"),
    ("gpt-realtime", "o200k_base"),
    ("gpt-image", "o200k_base"),
    ("codex", "o200k_base"),
    ("computer-use", "o200k_base"),
    ("gpt-5", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-3.5", "cl100k_base"),
    ("gpt-35", "cl100k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
)
_AFTER_FAMILY = frozenset("-_.:@")


def base_model(model: str) -> str:
    """A model's name without vendor prefix, fine-tuning marks and case: "openai/GPT-4o" is "gpt-4o"."""
    name = _VENDOR.sub("", model.strip().lower())
    if name.startswith("ft:"):
        name = name.split(":", 2)[1]
    return name


def in_family(name: str, family: str) -> bool:
    """Whether a base model's name is `family` or one of its variants: "o3-mini" is of "o3", "o3x" is not."""
    return name.startswith(family) and (
        len(name) == len(family) or family.endswith(".") or name[len(family)] in _AFTER_FAMILY
    )


def encoding_name(model: str) -> str | None:
    """The name of the encoding that a model uses, or None when the model is not one of OpenAI's."""
    name = base_model(model)
    for family, its_encoding in _NEWER:
        if in_family(name, family):
            return its_encoding
    if name in MODEL_TO_ENCODING:
        return MODEL_TO_ENCODING[name]
    for prefix, its_encoding in MODEL_PREFIX_TO_ENCODING.items():
        if name.startswith(prefix):
            return its_encoding
    return None
