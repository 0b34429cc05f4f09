"""GLM-4.5: grouped-query attention with half of each head rotated, first layers dense, then experts chosen by sigmoid scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, feed_forward
from slime_hpc.trainer.models.family import Family
from slime_hpc.trainer.models.sigmoid import sigmoid_options


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield from attention(sizes, layer)
    yield from feed_forward(sizes, layer, correction_bias=True)


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    return sigmoid_options(values)


GLM4_MOE = Family(layer=_layer, options=_options)
