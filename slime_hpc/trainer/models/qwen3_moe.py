"""Qwen3-MoE: Qwen3's attention, and experts chosen by the softmax of their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, feed_forward, norm
from slime_hpc.trainer.models.family import Family


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    # The softmax over the chosen experts alone is that over all of them, normalised to the chosen ones.
    return {"qk_layernorm": True, "moe_router_pre_softmax": not values.get("norm_topk_prob", False)}


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield norm(layer, "input_layernorm.weight", "input_layernorm.weight", sizes.hidden_size)
    yield from attention(sizes, layer, qk_norm=True)
    yield from feed_forward(sizes, layer)


QWEN3_MOE = Family(options=_options, layer=_layer)
