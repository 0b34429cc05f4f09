"""Llama (and the models that borrow its architecture), Qwen2 with biases of q, k and v, and Qwen3 with norms of q and k."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, feed_forward, norm
from slime_hpc.trainer.models.family import Family


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "add_qkv_bias": sizes.architecture == "Qwen2ForCausalLM",
        "qk_layernorm": sizes.architecture == "Qwen3ForCausalLM",
    }


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield norm(layer, "input_layernorm.weight", "input_layernorm.weight", sizes.hidden_size)
    architecture = sizes.architecture
    yield from attention(sizes, layer, bias=architecture == "Qwen2ForCausalLM", qk_norm=architecture == "Qwen3ForCausalLM")
    yield from feed_forward(sizes, layer)


LLAMA = Family(options=_options, layer=_layer)
