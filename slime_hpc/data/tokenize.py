"""From text to token ids, with the model's own tokenizer. transformers is imported when a tokenizer is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slime_hpc.data.prompt import Demonstration, Prompt
from slime_hpc.errors import DataError

Tokenizer = Any
"""A transformers tokenizer."""
Decode = Callable[[list[int]], str]
"""Token ids to text."""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, without asking any hub."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, *, chat: bool) -> list[int]:
    """Token ids of a prompt; chat messages, and plain text when `chat` is on, go through the chat template."""
    content = prompt.content
    if isinstance(content, str) and chat:
        content = [{"role": "user", "content": content}]
    if isinstance(content, str):
        ids: list[int] = tokenizer(content, add_special_tokens=False)["input_ids"]
    else:
        text = tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise DataError("A prompt has no tokens.", where="data", fix="remove empty prompts")
    return ids


def encode_demonstrations(tokenizer: Tokenizer, demonstrations: Sequence[Demonstration]) -> list[tuple[list[int], list[int]]]:
    """Token ids of each prompt, and of its completion with the end-of-sequence token; in two calls, since a call costs more than a text."""
    prompts = tokenizer([item.prompt for item in demonstrations], add_special_tokens=False)["input_ids"]
    completions = tokenizer([item.completion for item in demonstrations], add_special_tokens=False)["input_ids"]
    return [(list(p), [*c, tokenizer.eos_token_id]) for p, c in zip(prompts, completions, strict=True)]
