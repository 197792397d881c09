"""The text into which OpenAI renders tool definitions and response formats before it bills them.

Tools become TypeScript in a namespace, response formats JSON schema. The forms were recovered from
recordings (shared/facts/tokens.md, 1.3 and 1.5); the first to publish the outline was
hmarr/openai-chat-tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.tokens.openai_json import COMPACT, dumped

# What is rendered of one request's schemas. `$ref`s are written out where they are used, so a small schema
# can describe an endless text.
_MOST_NODES = 20_000
_DEEPEST = 64


@dataclass(slots=True)
class Rendering:
    """A rendered block, whether any tool has parameters, and why its text may not be OpenAI's."""

    text: str
    parameters: bool = False
    unsure: tuple[str, ...] = ()


def render_tools(functions: Sequence[Any]) -> Rendering:
    """The block for function definitions (`{"name", "description", "parameters"}`)."""
    out = ["# Tools\n\n## functions\n\nnamespace functions {\n\n"]
    parameters = False
    doubts: dict[str, None] = {}
    for function in functions:
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            doubts["a malformed tool"] = None
            continue
        schema = function.get("parameters")
        renderer = _Renderer(schema if isinstance(schema, Mapping) else {})
        signature = renderer.signature()
        parameters = parameters or bool(signature)
        out.append(comment(function.get("description")))
        out.append(f"type {function['name']} = ({signature}) => any;\n\n")
        doubts.update(renderer.unsure)
    out.append("} // namespace functions")
    return Rendering("".join(out), parameters, tuple(doubts))


def comment(text: object) -> str:
    """A description as `//` lines: each stripped, empty ones dropped."""
    if not isinstance(text, str):
        return ""
    return "".join([f"// {line.strip()}\n" for line in text.split("\n") if line.strip()])


@dataclass(slots=True)
class _Renderer:
    """Renders the parameters of one tool."""

    root: Mapping[str, Any]
    unsure: dict[str, None] = field(default_factory=dict)
    nodes: int = 0
    open_refs: list[str] = field(default_factory=list)

    def signature(self) -> str:
        """What stands between the parentheses; empty without properties."""
        schema = self.resolved(self.root)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return ""
        notes = _heading(schema)
        shape = self.shape(schema, 0)
        return f"_: {notes}{shape}"

    def shape(self, schema: Mapping[str, Any], depth: int) -> str:
        """An object type: one line when no property carries a comment, else one line each."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return "object"
        required = schema.get("required")
        needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else set()
        fields: list[tuple[str, str, str]] = []
        for key, value in properties.items():
            inner = self.resolved(value)
            mark = "" if key in needed else "?"
            if "default" in inner and isinstance(inner.get("properties"), Mapping):
                self.unsure["an object with a default in a tool"] = None  # one recording: 1 less
            fields.append(
                (_heading(inner), f"{key}{mark}: {self.type_of(value, depth + 1)}", _default(inner))
            )
        if not any(heading or default for heading, _, default in fields):
            return "{ " + ", ".join([line for _, line, _ in fields]) + " }"
        return "{\n" + "".join([f"{heading}{line},{default}\n" for heading, line, default in fields]) + "}"

    def resolved(self, schema: object) -> Mapping[str, Any]:
        """The schema itself, or what its `$ref` names with its own notes laid over."""
        if not isinstance(schema, Mapping):
            return {}
        for _ in range(_DEEPEST):
            ref = schema.get("$ref")
            if not isinstance(ref, str):
                break
            target: Any = self.root
            for step in ref.removeprefix("#").strip("/").split("/"):
                target = target.get(step) if isinstance(target, Mapping) and step else target
            if not isinstance(target, Mapping):
                self.unsure["a $ref that leads nowhere"] = None
                break
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def type_of(self, schema: object, depth: int) -> str:
        """The type of one property."""
        self.nodes += 1
        if self.nodes > _MOST_NODES or depth > _DEEPEST:
            self.unsure["a tool schema too deep to render"] = None
            return "any"
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if isinstance(ref, str):
            if ref in self.open_refs:
                self.unsure["a recursive tool schema"] = None
                return "any"
            self.open_refs.append(ref)
            try:
                return self._type_of(self.resolved(schema), depth)
            finally:
                self.open_refs.pop()
        return self._type_of(self.resolved(schema), depth)

    def _type_of(self, schema: Mapping[str, Any], depth: int) -> str:
        for key in ("anyOf", "oneOf"):
            choices = schema.get(key)
            if isinstance(choices, list) and choices:
                if any(isinstance(choice, Mapping) and "format" in choice for choice in choices):
                    self.unsure["alternatives with a format in a tool"] = None  # one recording: 17 more
                return " | ".join([self.type_of(choice, depth + 1) for choice in choices])
        values = schema.get("enum")
        if isinstance(values, list) and values:
            return " | ".join([dumped(value) for value in values])
        if "const" in schema:
            return dumped(schema["const"])
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join([self._kind(one, schema, depth) for one in kind])
        return self._kind(kind, schema, depth)

    def _kind(self, kind: object, schema: Mapping[str, Any], depth: int) -> str:
        match kind:
            case "string" | "number" | "boolean" | "null":
                return str(kind)
            case "integer":
                return "number"
            case "array":
                items = schema.get("items")
                element = self.type_of(items, depth + 1) if isinstance(items, Mapping) else "any"
                if "\n" in element:
                    # Recorded at 34 tokens more than this form, for one schema; the true form is unknown.
                    self.unsure["an array of described objects in a tool"] = None
                return element + "[]"
            case "object":
                return self.shape(schema, depth)
        if kind is None and isinstance(schema.get("properties"), Mapping):
            return self.shape(schema, depth)
        return "any"


def _heading(schema: Mapping[str, Any]) -> str:
    """The comment over a property: its title, an empty comment line between, its description."""
    title, description = comment(schema.get("title")), comment(schema.get("description"))
    return f"{title}//\n{description}" if title and description else title + description


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    bare = isinstance(value, str) and isinstance(schema.get("enum"), list)
    return f" // default: {value if bare else dumped(value)}"


# Taken out of a response format's schema at every level before it is billed; what is named so under
# "properties" is a property and stays.
_UNBILLED = frozenset(
    {"additionalProperties", "required", "default", "minimum", "maximum", "minItems", "maxItems"}
)


def render_format(response_format: object) -> tuple[str, str] | None:
    """Name and block of a json_schema response format; None for other formats, which cost nothing."""
    if not isinstance(response_format, Mapping) or response_format.get("type") != "json_schema":
        return None
    spec = response_format.get("json_schema")
    if not isinstance(spec, Mapping):
        return None
    given = spec.get("name")
    name = given if isinstance(given, str) else ""
    schema = dumped(_billed(spec.get("schema"), 0), ascii_only=True, separators=COMPACT)
    return name, f"# Response Formats\n\n## {name}\n\n{comment(spec.get('description'))}{schema}"


def _billed(schema: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return schema
    if isinstance(schema, list):
        return [_billed(item, depth + 1) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _UNBILLED:
            continue
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            kept[key] = {name: _billed(inner, depth + 1) for name, inner in value.items()}
        elif key in ("enum", "const"):
            kept[key] = value
        else:
            kept[key] = _billed(value, depth + 1)
    return kept
