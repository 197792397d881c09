"""Run by the engine's own Python: the GGUF file of SmolLM2 as a folder of safetensors, tokenizer and template."""

import shutil
import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(weights: Path, template: Path, into: Path) -> None:
    source, file = weights.parent, weights.name
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(into)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # The conversion forgets that the model reads digits one by one (llama.cpp's pre-tokenizer `smollm`).
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(into)
    shutil.copy(template, into / "chat_template.jinja")


convert(*map(Path, sys.argv[1:]))
