"""Hugging Face weights <-> this rank's Megatron weights: six kinds of layout, exact both ways. The names are in `trainer.models`.

    whole          the same on every tensor-parallel rank
    rows           split along dimension 0
    columns        split along dimension 1
    qkv            q, k and v interleaved by query group: [q of group 0, k 0, v 0, q of group 1, ...], then split along dimension 0
    gate_up        each rank holds its rows of gate, then its rows of up
    gate_up_fused  the same, from one tensor that holds gate above up

Pure functions over tensors and names; reads no file and joins no collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from slime_hpc.plan.model_config import ModelConfig

Kind = Literal["whole", "rows", "columns", "qkv", "gate_up", "gate_up_fused"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One Megatron parameter, or buffer, and the Hugging Face tensors it holds."""

    layer: int | None
    """Index in the whole model; None for those before and after the layers."""
    megatron: str
    """Name in its pipeline stage; for layers, what follows 'decoder.layers.<i>.'; for experts, what follows the expert's index."""
    hf: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Of the Hugging Face tensors."""
    kind: Kind
    place: Literal["first", "layer", "last"]
    """Pipeline stage: the first, the layer's, the last."""
    expert: int | None = None
    """Index among the layer's routed experts, which are split over expert parallelism."""
    dtype: torch.dtype | None = None
    """Where it is not the model's."""


def to_megatron(weight: Weight, tensors: Sequence[torch.Tensor], sizes: ModelConfig, *, rank: int, tp: int) -> torch.Tensor:
    """This tensor-parallel rank's share, from the full Hugging Face tensors; of an expert, its own tensor parallelism's."""
    match weight.kind:
        case "whole":
            return tensors[0]
        case "rows":
            return tensors[0].chunk(tp, 0)[rank]
        case "columns":
            return tensors[0].chunk(tp, 1)[rank]
        case "gate_up":
            return torch.cat([tensor.chunk(tp, 0)[rank] for tensor in tensors])
        case "gate_up_fused":
            return torch.cat([tensor.chunk(tp, 0)[rank] for tensor in tensors[0].chunk(2, 0)])
        case "qkv":
            groups = [tensor.reshape(sizes.num_kv_heads, -1, *tensor.shape[1:]) for tensor in tensors]
            return torch.cat(groups, dim=1).flatten(0, 1).chunk(tp, 0)[rank]


def to_hf(weight: Weight, shards: Sequence[torch.Tensor], sizes: ModelConfig) -> tuple[torch.Tensor, ...]:
    """The full Hugging Face tensors, from the shares of all tensor-parallel ranks in order."""
    match weight.kind:
        case "whole":
            return (shards[0],)
        case "rows":
            return (torch.cat(list(shards), 0),)
        case "columns":
            return (torch.cat(list(shards), 1),)
        case "gate_up":
            return _gate_up(shards)
        case "gate_up_fused":
            return (torch.cat(_gate_up(shards), 0),)
        case "qkv":
            merged = torch.cat(list(shards), 0)
            heads = sizes.num_heads // sizes.num_kv_heads
            groups = merged.reshape(sizes.num_kv_heads, (heads + 2) * sizes.head_dim, *merged.shape[1:])
            parts = groups.split([heads * sizes.head_dim, sizes.head_dim, sizes.head_dim], dim=1)
            return tuple(part.flatten(0, 1).contiguous() for part in parts)


def _gate_up(shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    halves = zip(*(shard.chunk(2, 0) for shard in shards), strict=True)
    return tuple(torch.cat(half, 0) for half in halves)
