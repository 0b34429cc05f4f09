"""Hugging Face weights <-> this rank's Megatron weights: one table of names, five kinds of layout, exact both ways.

    whole     the same on every tensor-parallel rank
    rows      split along dimension 0
    columns   split along dimension 1
    qkv       q, k and v interleaved by query group: [q of group 0, k 0, v 0, q of group 1, ...], then split along dimension 0
    gate_up   each rank holds its rows of gate, then its rows of up

Pure functions over tensors and names; reads no file and joins no collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from slime_hpc.plan.model_config import ModelConfig

Kind = Literal["whole", "rows", "columns", "qkv", "gate_up"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One Megatron parameter and the Hugging Face tensors it holds."""

    layer: int | None
    """Index in the whole model; None for those before and after the layers."""
    megatron: str
    """Name in its pipeline stage; for layers, what follows 'decoder.layers.<i>.'."""
    hf: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Of the Hugging Face tensors."""
    kind: Kind
    place: Literal["first", "layer", "last"]
    """Pipeline stage: the first, the layer's, the last."""


def weights(sizes: ModelConfig) -> Iterator[Weight]:
    """All weights of a model, in the order in which they are exported."""
    hidden, vocab = sizes.hidden_size, sizes.vocab_size
    yield Weight(None, "embedding.word_embeddings.weight", ("model.embed_tokens.weight",), ((vocab, hidden),), "rows", "first")
    for layer in range(sizes.num_layers):
        yield from _layer(sizes, layer)
    yield Weight(None, "decoder.final_layernorm.weight", ("model.norm.weight",), ((hidden,),), "whole", "last")
    if not sizes.tied:
        yield Weight(None, "output_layer.weight", ("lm_head.weight",), ((vocab, hidden),), "rows", "last")


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    hidden, ffn, dim = sizes.hidden_size, sizes.ffn_size, sizes.head_dim
    q, kv = sizes.num_heads * dim, sizes.num_kv_heads * dim

    def weight(megatron: str, kind: Kind, *hf: tuple[str, Shape]) -> Weight:
        names = tuple(f"model.layers.{layer}.{name}" for name, _ in hf)
        return Weight(layer, megatron, names, tuple(shape for _, shape in hf), kind, "layer")

    yield weight("input_layernorm.weight", "whole", ("input_layernorm.weight", (hidden,)))
    parts = (("q", q), ("k", kv), ("v", kv))
    yield weight("self_attention.linear_qkv.weight", "qkv", *((f"self_attn.{x}_proj.weight", (rows, hidden)) for x, rows in parts))
    if sizes.architecture == "Qwen2ForCausalLM":
        yield weight("self_attention.linear_qkv.bias", "qkv", *((f"self_attn.{x}_proj.bias", (rows,)) for x, rows in parts))
    if sizes.architecture == "Qwen3ForCausalLM":
        yield weight("self_attention.q_layernorm.weight", "whole", ("self_attn.q_norm.weight", (dim,)))
        yield weight("self_attention.k_layernorm.weight", "whole", ("self_attn.k_norm.weight", (dim,)))
    yield weight("self_attention.linear_proj.weight", "columns", ("self_attn.o_proj.weight", (hidden, q)))
    yield weight("pre_mlp_layernorm.weight", "whole", ("post_attention_layernorm.weight", (hidden,)))
    gate_up = (("mlp.gate_proj.weight", (ffn, hidden)), ("mlp.up_proj.weight", (ffn, hidden)))
    yield weight("mlp.linear_fc1.weight", "gate_up", *gate_up)
    yield weight("mlp.linear_fc2.weight", "columns", ("mlp.down_proj.weight", (hidden, ffn)))


def to_megatron(weight: Weight, tensors: Sequence[torch.Tensor], sizes: ModelConfig, *, rank: int, tp: int) -> torch.Tensor:
    """This tensor-parallel rank's share, from the full Hugging Face tensors."""
    match weight.kind:
        case "whole":
            return tensors[0]
        case "rows":
            return tensors[0].chunk(tp, 0)[rank]
        case "columns":
            return tensors[0].chunk(tp, 1)[rank]
        case "gate_up":
            return torch.cat([tensor.chunk(tp, 0)[rank] for tensor in tensors])
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
            halves = zip(*(shard.chunk(2, 0) for shard in shards), strict=True)
            return tuple(torch.cat(half, 0) for half in halves)
        case "qkv":
            merged = torch.cat(list(shards), 0)
            heads = sizes.num_heads // sizes.num_kv_heads
            groups = merged.reshape(sizes.num_kv_heads, (heads + 2) * sizes.head_dim, *merged.shape[1:])
            parts = groups.split([heads * sizes.head_dim, sizes.head_dim, sizes.head_dim], dim=1)
            return tuple(part.flatten(0, 1).contiguous() for part in parts)
