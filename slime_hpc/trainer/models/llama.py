"""Llama (and the models that borrow its architecture), Qwen2 with biases of q, k and v, and Qwen3 with norms of q and k."""

from __future__ import annotations

from collections.abc import Iterator

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, feed_forward
from slime_hpc.trainer.models.family import Family


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield from attention(sizes, layer)
    yield from feed_forward(sizes, layer)


LLAMA = Family(layer=_layer)
