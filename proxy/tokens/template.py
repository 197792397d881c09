"""A model's chat template: from a request to the prompt that its server tokenizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from proxy.tokens import template_llama
from proxy.tokens.template_jinja import environment, takes_parts
from proxy.tokens.template_request import (
    ServerFlags,
    TemplateRefused,
    conversation,
    doubts_of_vllm,
    variables,
    without_developers,
)
from proxy.tokens.tokenizer_files import CONFIG, TokenizerFileError, read_config, read_object, token_text

TEMPLATE = "chat_template.jinja"
_MORE = "additional_chat_templates"
_OLD = "chat_template.json"  # where processors kept it
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Prompt(NamedTuple):
    """A rendered prompt, and each reason why the server may count more than it."""

    text: str
    unsure: tuple[str, ...] = ()


class _Compiled:
    __slots__ = ("knows_developers", "parts", "source", "template")

    def __init__(self, source: str, jinja: jinja2.Environment, flags: ServerFlags) -> None:
        self.source = source
        self.template = jinja.from_string(source)
        asked = flags.chat_template_content_format
        self.parts = takes_parts(jinja.parse(source)) if asked == "auto" else asked == "openai"
        # vLLM 0.32, renderers/hf.py (`_detect_developer_role_support`).
        self.knows_developers = '"developer"' in source or "'developer'" in source

    def render(
        self, special: Mapping[str, Any], given: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> str:
        named = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self.template.render({**named, **special, **given, "messages": messages})
        except Exception as error:
            # A template is code: on odd messages it fails in any way that code can.
            raise TemplateRefused(str(error) or type(error).__name__) from error


class ChatTemplate:
    """Renders requests. Raises TemplateRefused where the server would answer 400; changes nothing it is given.

    `sources`: templates by name, "default" and perhaps "tool_use". `special`: the names of special tokens
    (`bos_token`) and their strings. Templates of one `name` render alike.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special: Mapping[str, Any],
        flags: ServerFlags | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._flags = flags or ServerFlags()
        self._special = dict(special)
        decides = [sorted(sources.items()), sorted(self._special.items()), repr(self._flags)]
        self.name = blake2b(repr(decides).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        jinja = environment(clock)
        self._compiled = {name: _Compiled(source, jinja, self._flags) for name, source in sources.items()}

    @property
    def on_llama_cpp(self) -> bool:
        """Whether the server is llama.cpp."""
        return self._flags.server == "llama.cpp"

    @classmethod
    def load(
        cls,
        folder: Path,
        flags: ServerFlags | None = None,
        clock: Callable[[], datetime] = datetime.now,
        template: Path | None = None,
    ) -> ChatTemplate:
        """The template of a model's folder, or another one for that model (vLLM's `--chat-template`)."""
        config = read_config(folder)
        if template is not None:
            origin, sources = template, {"default": _read(template)}
        else:
            origin, sources = _sources(folder, config)
        special = _special(config)
        try:
            return cls(sources, special, flags, clock)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerFileError(origin, f"chat template, line {error.lineno}: {error.message}") from None

    def render(self, body: Mapping[str, Any]) -> Prompt:
        """The prompt of a chat request."""
        given = variables(body, self._flags)
        compiled = self._choose(given.get("tools"))
        talk = conversation(body.get("messages"), parts=compiled.parts, empty=self.on_llama_cpp)
        if self.on_llama_cpp:
            talk.unsure.update(dict.fromkeys(template_llama.doubts(talk.messages, given, compiled.source)))
            text = _render_for_llama_cpp(self._special, compiled, given, talk.messages, body)
        else:
            talk.unsure.update(dict.fromkeys(doubts_of_vllm(body)))
            text = _render_for_vllm(self._special, compiled, given, talk.messages)
        return Prompt(text, tuple(talk.unsure))

    def _choose(self, tools: Any) -> _Compiled:
        """transformers 5.24, tokenization_utils_base.py (`get_chat_template`)."""
        if tools is not None and "tool_use" in self._compiled:
            return self._compiled["tool_use"]
        if "default" not in self._compiled:
            raise TemplateRefused(f"no default among the templates {', '.join(sorted(self._compiled))}")
        return self._compiled["default"]


def _render_for_vllm(
    special: Mapping[str, Any], compiled: _Compiled, given: dict[str, Any], messages: list[dict[str, Any]]
) -> str:
    if not compiled.knows_developers and any(message["role"] == "developer" for message in messages):
        messages = without_developers(messages)
    if not messages:
        raise TemplateRefused("no messages")
    if not given.pop("continue_final_message", False):
        return compiled.render(special, given, messages)
    if given.get("add_generation_prompt"):
        raise TemplateRefused("both `continue_final_message` and `add_generation_prompt`")
    end = _mark_end(messages, compiled.source)
    return _cut_end(compiled.render(special, given, messages), end)


def _render_for_llama_cpp(
    special: Mapping[str, Any],
    compiled: _Compiled,
    given: dict[str, Any],
    messages: list[dict[str, Any]],
    body: Mapping[str, Any],
) -> str:
    given.pop("continue_final_message", None)
    if body.get("documents") is not None:  # known to it as a variable of the template only
        given["documents"] = (body.get("chat_template_kwargs") or {}).get("documents")
    messages = template_llama.developers_as_systems(messages, compiled.source)
    text = template_llama.continued(body)
    if text is None:
        return compiled.render(special, given, messages)
    given["add_generation_prompt"] = template_llama.begins(body)
    return compiled.render(special, given, messages[:-1]) + text


def _mark_end(messages: list[dict[str, Any]], source: str) -> str:
    """Mark where the last message ends, and return its text (transformers 5.24, `render_jinja_template`)."""
    last = messages[-1]
    content = last["content"]
    if "content" not in source:
        raise TemplateRefused("the template reads no content to continue")
    if isinstance(content, str):
        messages[-1] = last | {"content": content + _TAG}
        return content
    for number in range(len(content) - 1, -1, -1):
        if "text" in content[number]:
            text: str = content[number]["text"]
            marked = content[number] | {"text": text + _TAG}
            messages[-1] = last | {"content": [*content[:number], marked, *content[number + 1 :]]}
            return text
    raise TemplateRefused("the last message has no text to continue")


def _cut_end(text: str, last: str) -> str:
    if last.strip() not in text or _TAG.strip() not in text:
        raise TemplateRefused("the template leaves out the message to continue")
    at = text.rindex(_TAG.strip())
    if text.startswith(_TAG, at):
        return text[:at]
    return text[:at].rstrip()  # the template stripped the message's end


def _sources(folder: Path, config: Mapping[str, Any]) -> tuple[Path, dict[str, str]]:
    """The newest way first: files of their own, then the config, then the processor's (transformers 5.24)."""
    sources = {file.stem: _read(file) for file in sorted((folder / _MORE).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        return folder / TEMPLATE, sources | {"default": _read(folder / TEMPLATE)}
    for name, given in ((CONFIG, config), (_OLD, read_object(folder / _OLD))):
        value = given.get("chat_template")
        if isinstance(value, list):
            value = {item["name"]: item["template"] for item in value if isinstance(item, dict)}
        elif isinstance(value, str):
            value = {"default": value}
        if isinstance(value, dict) and value:
            return folder / name, sources | value
    if sources:
        return folder / _MORE, sources
    raise TokenizerFileError(folder, f"no chat template ({TEMPLATE}, or `chat_template` in {CONFIG})")


def _special(config: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in config.items():
        text = token_text(value)
        if name.endswith("_token") and text is not None:
            out[name] = text
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(name)
        if isinstance(value, list):
            out[name] = [text for item in value if (text := token_text(item)) is not None]
        elif isinstance(value, dict):  # model-specific names, such as image_token
            out |= {key: text for key, item in value.items() if (text := token_text(item)) is not None}
    return out


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerFileError(file, str(error)) from None
