"""What every section of the configuration is made of: how it refuses unknown keys, its types, its secrets."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo

MIB = 1024 * 1024


class ConfigError(Exception):
    """All that is wrong with a configuration: (key, what is wrong) pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {problem}" if key else problem for key, problem in problems))
        self.problems = problems


def _secret(value: object, info: ValidationInfo) -> object:
    """`env:NAME` or `file:PATH`: a key itself has no place in a file that gets copied and committed."""
    if not isinstance(value, str):
        raise ValueError('must be "env:NAME" or "file:PATH"')
    kind, _, where = value.partition(":")
    context: Mapping[str, Any] = info.context or {}
    if kind == "env" and where:
        found = context.get("environ", {}).get(where, "").strip()
        if not found:
            raise ValueError(f"the environment variable {where} is not set")
        return SecretStr(found)
    if kind == "file" and where:
        path = Path(context.get("folder", ".")) / where
        try:
            found = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file {path} cannot be read ({type(error).__name__})") from None
        if not found:
            raise ValueError(f"the file {path} is empty")
        return SecretStr(found)
    raise ValueError('must be "env:NAME" or "file:PATH", never the key itself')


def _text_or_secret(value: object, info: ValidationInfo) -> object:
    """A plain text, or a secret by its place. Kept as a secret either way: an environment may hold keys."""
    if isinstance(value, str) and not value.startswith(("env:", "file:")):
        return SecretStr(value)
    return _secret(value, info)


Secret: TypeAlias = Annotated[SecretStr, BeforeValidator(_secret)]
EnvironmentValue: TypeAlias = Annotated[SecretStr, BeforeValidator(_text_or_secret)]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def no_flag(value: object) -> object:
    """`true` is no number, though Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Tokens: TypeAlias = Annotated[int, BeforeValidator(no_flag), Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f]+$")]
Strategy: TypeAlias = Literal["keep", "trim", "summarize"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
