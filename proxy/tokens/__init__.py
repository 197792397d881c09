"""Counting prompts with the real tokenizer of each model."""
