"""Qwen3-MoE: Qwen3's attention, and experts chosen by the softmax of their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, feed_forward
from slime_hpc.trainer.models.family import Family


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield from attention(sizes, layer)
    yield from feed_forward(sizes, layer)


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    # The softmax over the chosen experts alone is that over all of them, normalised to the chosen ones.
    return {"moe_router_pre_softmax": not values.get("norm_topk_prob", False)}


QWEN3_MOE = Family(layer=_layer, options=_options)
