"""What a plan must know of a model: sizes from the Hugging Face config.json, read with the standard library alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_hpc.errors import DataError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder-only language model."""

    architecture: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    max_positions: int

    @property
    def num_parameters(self) -> int:
        """Weights of all layers, embeddings counted once when tied; norms and biases are left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.ffn_size
        return self.num_layers * layer + self.vocab_size * self.hidden_size * (1 if self.tied else 2)


def read_model_config(folder: Path, *, needs_weights: bool) -> ModelConfig:
    """Read and check a model folder. Raises DataError with the key model.path."""
    values = _read_json(folder)
    architecture = (values.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise DataError(
            f"{folder} holds a {architecture}, which the trainer does not know.",
            where=f"{folder / 'config.json'}: architectures",
            fix=f"use one of {', '.join(ARCHITECTURES)}",
        )
    if needs_weights and not any(folder.glob("*.safetensors")):
        raise DataError(
            f"{folder} has no safetensors weights.",
            where="model.path",
            fix='give a whole Hugging Face folder, or set model.init = "random"',
        )
    try:
        heads = int(values["num_attention_heads"])
        hidden = int(values["hidden_size"])
        return ModelConfig(
            architecture=architecture,
            num_layers=int(values["num_hidden_layers"]),
            hidden_size=hidden,
            ffn_size=int(values["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or hidden // heads),
            vocab_size=int(values["vocab_size"]),
            tied=bool(values.get("tie_word_embeddings", False)),
            max_positions=int(values.get("max_position_embeddings", 0)),
        )
    except KeyError as error:
        raise DataError(
            f"{folder / 'config.json'} has no {error.args[0]!r}.", where="model.path", fix="give a whole Hugging Face folder"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{folder / 'config.json'} holds a size that is no number: {error}.", where="model.path", fix="fetch the model again"
        ) from error


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise DataError(
            f"There is no model folder {folder}.",
            where="model.path",
            fix="correct the path; a recipe's model is made by `slime-hpc recipes prepare NAME`",
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} has no config.json, so it is no Hugging Face folder.", where="model.path", fix="correct the path"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not JSON: {error}.", where="model.path", fix="fetch the model again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object.", where="model.path", fix="fetch the model again")
    return value
