"""The arguments that an installed vLLM takes, read from its own `--help`. Pure.

Sources: the layout is argparse's HelpFormatter; `--help=all` is vLLM's since 0.10, older ones say all by `--help`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_INVOCATION = re.compile(r"^  (-{1,2}[A-Za-z].*)$")
_HELP_GAP = re.compile(r"\s{2,}")
_NAME = re.compile(r"(?<![\w-])--?[A-Za-z0-9][\w-]*")
_BRACES = re.compile(r"\{([^{}]*)\}(.*)")
_LIST = re.compile(r"\[((?:'[^']*'(?:, )?)+)\]")
_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """`choices` by flag; None where any value may be given."""

    version: str
    choices: Mapping[str, Sequence[str] | None] = field(default_factory=dict)

    def __contains__(self, flag: str) -> bool:
        return flag in self.choices

    def near(self, flag: str) -> list[str]:
        """Flags that are spelled alike, the nearest first."""
        return difflib.get_close_matches(flag, [f for f in self.choices if f.startswith("--")], 3, _NEAR)

    def dump(self) -> str:
        return json.dumps({"version": self.version, "choices": self.choices})

    @classmethod
    def restore(cls, text: str) -> EngineArguments:
        """Raises ValueError for anything that `dump` did not write."""
        said: Any = json.loads(text)
        if not isinstance(said, dict) or not isinstance(said.get("choices"), dict) or not said["choices"]:
            raise ValueError("not a list of arguments")
        return cls(str(said.get("version")), said["choices"])


def parse(help_text: str, version: str) -> EngineArguments:
    """From the text of `--help`: one paragraph for each argument, which begins with all of its names."""
    choices: dict[str, Sequence[str] | None] = {}
    for line in help_text.splitlines():
        found = _INVOCATION.match(line)
        if found is None:
            continue
        invocation = _HELP_GAP.split(found[1])[0]
        bare = _BRACES.sub("", _LIST.sub("", invocation))
        allowed = _choices(invocation)
        for name in _NAME.findall(bare):
            choices[name] = allowed
    return EngineArguments(version, choices)


def _choices(invocation: str) -> Sequence[str] | None:
    if braces := _BRACES.search(invocation):
        # "{a,b} or name registered in ..." takes other names too.
        return None if braces[2].lstrip().startswith("or ") else braces[1].split(",")
    if listed := _LIST.search(invocation):
        return [name.strip("' ") for name in listed[1].split(",")]
    return None
