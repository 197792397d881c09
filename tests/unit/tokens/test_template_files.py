"""The template of a model's folder, wherever it is kept there."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")

from proxy.tokens.template import ChatTemplate
from proxy.tokens.tokenizer_files import TokenizerFileError


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def loaded(folder: Path, **options: Any) -> str:
    return ChatTemplate.load(folder, **options).render({"messages": [{"role": "user", "content": "a"}]}).text


def test_a_folders_template(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=r"no chat template \(chat_template.jinja"):
        ChatTemplate.load(tmp_path)
    write(tmp_path, "chat_template.json", {"chat_template": "old"})
    assert loaded(tmp_path) == "old"
    named = [{"name": "default", "template": "{{ bos_token }}list"}, {"name": "tool_use", "template": "t"}]
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": None, "chat_template": named}
    write(tmp_path, "tokenizer_config.json", config)
    assert loaded(tmp_path) == "<s>list"
    write(tmp_path, "special_tokens_map.json", {"bos_token": "<x>", "eos_token": "</s>"})
    write(tmp_path, "tokenizer_config.json", config | {"chat_template": "{{ bos_token }}text{{ eos_token }}"})
    assert loaded(tmp_path) == "<x>text</s>"
    write(
        tmp_path,
        "tokenizer_config.json",
        config | {"chat_template": "{{ bos_token }}", "added_tokens_decoder": {}},
    )
    assert loaded(tmp_path) == "<s>"
    write(tmp_path, "chat_template.jinja", "file")
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "for tools")
    assert loaded(tmp_path) == "file"
    write(tmp_path, "other.jinja", "other")
    assert loaded(tmp_path, template=tmp_path / "other.jinja") == "other"


def test_a_template_with_an_error_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "chat_template.jinja", "a\n{% if %}")
    with pytest.raises(TokenizerFileError, match=r"chat_template.jinja: chat template, line 2: "):
        ChatTemplate.load(tmp_path)
    write(tmp_path, "tokenizer_config.json", "{")
    with pytest.raises(TokenizerFileError, match=r"tokenizer_config.json: not JSON"):
        ChatTemplate.load(tmp_path)
