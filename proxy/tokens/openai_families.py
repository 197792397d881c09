"""How OpenAI's model families differ in what they bill as prompt tokens.

The numbers were recovered from recordings of the real API; shared/facts/tokens.md, sections 1.2 to 1.8,
says from how many and how sure each is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxy.tokens.encodings import base_model, encoding_name, in_family


@dataclass(frozen=True, slots=True)
class Tiles:
    """Images billed by 512-pixel tiles (tokens.md 1.6)."""

    base: int
    tile: int


@dataclass(frozen=True, slots=True)
class Patches:
    """Images billed by 32-pixel patches (tokens.md 1.6)."""

    multiplier: float


@dataclass(frozen=True, slots=True)
class Family:
    """The billing rules of one family of models."""

    name: str
    encoding: str
    # 3: the reply starts `<|start|>assistant<|message|>`; reasoning models choose a channel first: 2.
    reply_tokens: int = 3
    # `<|start|>`, `<|message|>` and `<|end|>` around each message.
    message_tokens: int = 3
    # A name is tokenized as ":" + name; older models bill a fixed number beside the bare name.
    name_with_colon: bool = True
    name_tokens: int = 0
    # Harmony's `<|channel|>final` on each earlier answer.
    answer_tokens: int = 0
    # The same, with recipient and constraint, on each turn that calls tools.
    call_turn_tokens: int = 0
    # Tools and response format in messages of their own instead of joining the system message.
    own_blocks: bool = False
    # Added once to a request with tools; the second when no tool has parameters.
    tools_tokens: int = -1
    bare_tools_tokens: int = -1
    # With tools, a request whose messages show images: 3 of 3 recordings of gpt-5-mini; not understood.
    tools_and_images_tokens: int = 0
    # Leading whitespace of a system message is not billed beside tools: 3 recordings of one text; an
    # explanation by the tools instead would fit them as well.
    system_stripped: bool = False
    tool_choice_billed: bool = True
    # The response format's name in the header of the reply, as in that of each earlier answer.
    format_in_reply: bool = True
    # Results of parallel calls are dumped as JSON with \\uXXXX for what is not ASCII.
    ascii_results: bool = True
    images: Tiles | Patches = Tiles(85, 170)
    unsure: tuple[str, ...] = ()


_CHAT = Family("gpt-4o", "o200k_base")
_OLD_CHAT = Family("gpt-4", "cl100k_base", name_with_colon=False, name_tokens=1)
_REASONING = Family(
    "o-series",
    "o200k_base",
    reply_tokens=2,
    own_blocks=True,
    tools_tokens=0,
    bare_tools_tokens=0,
    images=Tiles(75, 150),
)
_GPT5 = Family(
    "gpt-5",
    "o200k_base",
    reply_tokens=2,
    answer_tokens=2,
    call_turn_tokens=6,
    own_blocks=True,
    tools_tokens=81,
    bare_tools_tokens=80,
    tools_and_images_tokens=1,
    system_stripped=True,
    tool_choice_billed=False,
    format_in_reply=False,
    images=Tiles(70, 140),
)

# First match wins, so variants stand before their family.
_FAMILIES = (
    ("gpt-4o-mini", replace(_CHAT, name="gpt-4o-mini", images=Tiles(2833, 5667))),
    ("gpt-4o-2024-08-06", replace(_CHAT, ascii_results=False)),
    ("gpt-4o", _CHAT),
    ("chatgpt-4o", _CHAT),
    ("gpt-4.1-mini", replace(_CHAT, name="gpt-4.1-mini", images=Patches(1.62))),
    ("gpt-4.1-nano", replace(_CHAT, name="gpt-4.1-nano", images=Patches(2.46))),
    ("gpt-4.1", replace(_CHAT, name="gpt-4.1")),
    ("gpt-4.5", replace(_CHAT, name="gpt-4.5")),
    ("gpt-audio", replace(_CHAT, name="gpt-audio")),
    ("o1-mini", replace(_REASONING, name="o1-mini", unsure=("o1-mini bills irregularly",))),
    ("o1", replace(_REASONING, name="o1", unsure=("few recordings of o1",))),
    ("o3-mini", replace(_REASONING, name="o3-mini")),
    ("o3", replace(_REASONING, name="o3")),
    ("o4-mini", replace(_REASONING, name="o4-mini", images=Patches(1.72))),
    ("gpt-5-mini", replace(_GPT5, name="gpt-5-mini", images=Patches(1.2))),
    ("gpt-5-nano", replace(_GPT5, name="gpt-5-nano", images=Patches(1.5))),
    ("gpt-5.", replace(_GPT5, name="gpt-5.x", images=Patches(1.2))),
    ("gpt-5", _GPT5),
    (
        "gpt-3.5-turbo-0301",
        replace(
            _OLD_CHAT,
            name="gpt-3.5-turbo-0301",
            message_tokens=4,
            name_tokens=-1,
            # Two recordings agree with the cookbook in one case and not in the other.
            unsure=("a retired snapshot",),
        ),
    ),
    ("gpt-3.5", replace(_OLD_CHAT, name="gpt-3.5")),
    ("gpt-35", replace(_OLD_CHAT, name="gpt-3.5")),
    ("gpt-4", _OLD_CHAT),
)


def family(model: str) -> Family:
    """The rules for a model. One that is not known is billed like gpt-4o, with a reason to doubt it."""
    name = base_model(model)
    for prefix, found in _FAMILIES:
        if in_family(name, prefix):
            if "search-preview" in name or "search-api" in name:
                return replace(found, unsure=(*found.unsure, "search models bill content only"))
            if model.strip().lower() != name and ":" in model and model.strip().lower().startswith("ft:"):
                return replace(
                    found, unsure=(*found.unsure, "a fine-tuned model may have its own system text")
                )
            return found
    its_encoding = encoding_name(model)
    return replace(
        _CHAT,
        name="unknown",
        encoding=its_encoding or _CHAT.encoding,
        unsure=("unknown model, counted like gpt-4o",),
    )
