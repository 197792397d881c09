"""The jinja2 that chat templates are written for: Hugging Face's environment, and what a template takes.

After transformers 5.24, utils/chat_template_utils.py (`_cached_compile_jinja_template`): a sandbox in which
nothing given can be changed, blocks trimmed, `break` and `continue`, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, and the block `{% generation %}`, which marks text and renders it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Raised(jinja2.TemplateError):
    """What a template says with `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: its body, in a scope of its own as with transformers."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's way to say it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    """An environment whose `strftime_now` reads that clock."""

    def strftime_now(pattern: str) -> str:
        return clock().strftime(pattern)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = strftime_now
    return made


def _raise(message: object) -> None:
    raise Raised(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def takes_parts(tree: nodes.Template) -> bool:
    """Whether a template loops over a message's content, and so wants it as a list of parts.

    After vLLM 0.32, renderers/hf.py (`_detect_content_format`): a loop over the content of what loops over
    `messages` (or a name assigned from it), in a macro over a parameter that is given such content, and outside
    macros over anything called `content`. Where a loop's target is not one name, vLLM gives up: no parts.
    """
    try:
        return any(_content_loops(tree))
    except _NotAName:
        return False


class _NotAName(Exception):
    pass


def _content_loops(tree: nodes.Template) -> Iterator[bool]:
    messages = list(_message_names(tree))
    in_macro: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        filled = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macro.setdefault(id(loop), set())
            if filled:
                in_macro[id(loop)] = filled
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        found = any(_reads(over, name, "content") for name in messages)
        if not found and isinstance(over, nodes.Name):
            found = over.name in in_macro.get(id(loop), {"content"})
        if found:
            _name(loop.target)
            yield True


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    names = [argument.name for argument in macro.args]
    out = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        out |= {
            name for name, value in given if any(_reads(value, message, "content") for message in messages)
        }
    return out


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """The targets of loops over the messages."""
    lists, waiting = ["messages"], ["messages"]
    while waiting:
        source = waiting.pop(0)
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, source):
                name = _name(assign.target)
                if name not in lists:  # vLLM would turn in a ring here
                    lists.append(name)
                    waiting.append(name)
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in lists):
            yield _name(loop.target)


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NotAName
    return target.name


def _reads(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Whether an expression is that variable, or its `key`: through filters, tests and slices."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test):
            if node.node is None:
                return False
            node = node.node
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node = node.node
        else:
            break
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _reads_plainly(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _reads_plainly(node.node, name)


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
