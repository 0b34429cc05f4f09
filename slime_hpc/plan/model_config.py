"""What a plan must know of a model: sizes from the Hugging Face config.json, read with the standard library alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_hpc.errors import DataError

ARCHITECTURES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Glm4ForCausalLM",
    "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts in the place of some layers' feed-forward part."""

    count: int
    top_k: int
    ffn_size: int
    """Of one expert."""
    shared_ffn_size: int
    """Of the part that every token passes through; 0 = none."""
    layers: tuple[bool, ...]
    """Which layers have experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values through a low-rank latent (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    query_rank: int
    """0 = queries are projected directly."""
    kv_rank: int
    plain_dim: int
    """Of a query and key head, the part without positions."""
    rotary_dim: int
    value_dim: int


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
    rotary_dim: int
    """How many dimensions of a head are rotated by position."""
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None

    @property
    def num_parameters(self) -> int:
        """Weights of all layers, embeddings counted once when tied; norms, biases and routers are left out."""
        return self.num_dense_parameters + self.num_expert_parameters

    @property
    def num_dense_parameters(self) -> int:
        """Those that expert parallelism does not split."""
        sparse = sum(self.experts.layers) if self.experts else 0
        shared = sparse * self.experts.shared_ffn_size if self.experts else 0
        feed_forward = 3 * self.hidden_size * ((self.num_layers - sparse) * self.ffn_size + shared)
        return self.num_layers * self._attention + feed_forward + self.vocab_size * self.hidden_size * (1 if self.tied else 2)

    @property
    def num_expert_parameters(self) -> int:
        """Of all routed experts of all layers."""
        experts = self.experts
        return sum(experts.layers) * experts.count * 3 * self.hidden_size * experts.ffn_size if experts else 0

    @property
    def cache_values(self) -> int:
        """Numbers that a layer of an engine's cache holds of one token."""
        return self.latent.kv_rank + self.latent.rotary_dim if self.latent else 2 * self.num_kv_heads * self.head_dim

    @property
    def _attention(self) -> int:
        latent = self.latent
        if latent is None:
            return self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        query = self.num_heads * (latent.plain_dim + latent.rotary_dim)
        queries = latent.query_rank * (self.hidden_size + query) if latent.query_rank else self.hidden_size * query
        down = self.hidden_size * (latent.kv_rank + latent.rotary_dim)
        up = latent.kv_rank * self.num_heads * (latent.plain_dim + latent.value_dim)
        return queries + down + up + self.num_heads * latent.value_dim * self.hidden_size


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
        return _sizes(architecture, values)
    except KeyError as error:
        raise DataError(
            f"{folder / 'config.json'} has no {error.args[0]!r}.", where="model.path", fix="give a whole Hugging Face folder"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{folder / 'config.json'} holds a size that is no number: {error}.", where="model.path", fix="fetch the model again"
        ) from error


def _sizes(architecture: str, values: dict[str, Any]) -> ModelConfig:
    heads = int(values["num_attention_heads"])
    hidden = int(values["hidden_size"])
    layers = int(values["num_hidden_layers"])
    latent = _latent(values) if architecture == "DeepseekV3ForCausalLM" else None
    head_dim = latent.plain_dim + latent.rotary_dim if latent else int(values.get("head_dim") or hidden // heads)
    return ModelConfig(
        architecture=architecture,
        num_layers=layers,
        hidden_size=hidden,
        ffn_size=int(values["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=heads if latent else int(values.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        vocab_size=int(values["vocab_size"]),
        tied=bool(values.get("tie_word_embeddings", False)),
        max_positions=int(values.get("max_position_embeddings", 0)),
        rotary_dim=latent.rotary_dim if latent else int(head_dim * _rotated_fraction(architecture, values)),
        qkv_bias=_qkv_bias(architecture, values),
        qk_norm=architecture.startswith("Qwen3") or bool(values.get("use_qk_norm", False)),
        experts=_experts(architecture, values, layers),
        latent=latent,
    )


def _qkv_bias(architecture: str, values: dict[str, Any]) -> bool:
    # transformers' default is not that of the other families.
    default = architecture == "Glm4ForCausalLM"
    return architecture == "Qwen2ForCausalLM" or (architecture.startswith("Glm4") and bool(values.get("attention_bias", default)))


def _rotated_fraction(architecture: str, values: dict[str, Any]) -> float:
    parameters = values.get("rope_parameters") or {}
    default = 0.5 if architecture.startswith("Glm4") else 1.0
    return float(parameters.get("partial_rotary_factor") or values.get("partial_rotary_factor") or default)


def _latent(values: dict[str, Any]) -> LatentAttention:
    return LatentAttention(
        query_rank=int(values.get("q_lora_rank") or 0),
        kv_rank=int(values["kv_lora_rank"]),
        plain_dim=int(values["qk_nope_head_dim"]),
        rotary_dim=int(values["qk_rope_head_dim"]),
        value_dim=int(values["v_head_dim"]),
    )


def _experts(architecture: str, values: dict[str, Any], layers: int) -> Experts | None:
    if architecture == "Qwen3MoeForCausalLM":
        every, dense = int(values.get("decoder_sparse_step", 1)), values.get("mlp_only_layers") or []
        return Experts(
            # transformers 4 writes num_experts, 5 num_local_experts.
            count=int(values.get("num_experts") or values["num_local_experts"]),
            top_k=int(values["num_experts_per_tok"]),
            ffn_size=int(values["moe_intermediate_size"]),
            shared_ffn_size=0,
            layers=tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(layers)),
        )
    if architecture in ("Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"):
        ffn, first = int(values["moe_intermediate_size"]), int(values["first_k_dense_replace"])
        return Experts(
            count=int(values.get("n_routed_experts") or values["num_local_experts"]),
            top_k=int(values["num_experts_per_tok"]),
            ffn_size=ffn,
            shared_ffn_size=ffn * int(values.get("n_shared_experts") or 0),
            layers=tuple(layer >= first for layer in range(layers)),
        )
    return None


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
