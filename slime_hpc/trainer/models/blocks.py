"""Weights of the blocks that families are made of: norms, grouped-query attention, gated feed-forward, experts with their router."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Kind, Shape, Weight


def weight(layer: int, megatron: str, kind: Kind, *hf: tuple[str, Shape], expert: int | None = None) -> Weight:
    """A weight of a layer; names of `hf` follow 'model.layers.<i>.'."""
    names = tuple(f"model.layers.{layer}.{name}" for name, _ in hf)
    return Weight(layer, megatron, names, tuple(shape for _, shape in hf), kind, "layer", expert)


def norm(layer: int, megatron: str, hf: str, size: int) -> Weight:
    """An RMSNorm's weight, (size,)."""
    return weight(layer, megatron, "whole", (hf, (size,)))


def attention(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    """Grouped-query attention and the norm before it."""
    yield norm(layer, "input_layernorm.weight", "input_layernorm.weight", sizes.hidden_size)
    hidden, dim = sizes.hidden_size, sizes.head_dim
    q, kv = sizes.num_heads * dim, sizes.num_kv_heads * dim
    parts = (("q", q), ("k", kv), ("v", kv))
    yield weight(layer, "self_attention.linear_qkv.weight", "qkv", *((f"self_attn.{x}_proj.weight", (rows, hidden)) for x, rows in parts))
    if sizes.qkv_bias:
        yield weight(layer, "self_attention.linear_qkv.bias", "qkv", *((f"self_attn.{x}_proj.bias", (rows,)) for x, rows in parts))
    if sizes.qk_norm:
        yield norm(layer, "self_attention.q_layernorm.weight", "self_attn.q_norm.weight", dim)
        yield norm(layer, "self_attention.k_layernorm.weight", "self_attn.k_norm.weight", dim)
    yield weight(layer, "self_attention.linear_proj.weight", "columns", ("self_attn.o_proj.weight", (hidden, q)))


def gated(hidden: int, ffn: int, layer: int, megatron: str, hf: str, *, expert: int | None = None) -> Iterator[Weight]:
    """A gated feed-forward part under the prefixes `megatron` and `hf`, which end with a dot or are empty."""
    gate_up = ((f"{hf}gate_proj.weight", (ffn, hidden)), (f"{hf}up_proj.weight", (ffn, hidden)))
    yield weight(layer, f"{megatron}linear_fc1.weight", "gate_up", *gate_up, expert=expert)
    yield weight(layer, f"{megatron}linear_fc2.weight", "columns", (f"{hf}down_proj.weight", (hidden, ffn)), expert=expert)


def feed_forward(sizes: ModelConfig, layer: int, *, correction_bias: bool = False) -> Iterator[Weight]:
    """The norm before it, then a gated part, or router, experts and shared part where the layer has experts."""
    hidden, experts = sizes.hidden_size, sizes.experts
    yield norm(layer, "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", hidden)
    if experts is None or not experts.layers[layer]:
        yield from gated(hidden, sizes.ffn_size, layer, "mlp.", "mlp.")
        return
    yield weight(layer, "mlp.router.weight", "whole", ("mlp.gate.weight", (experts.count, hidden)))
    if correction_bias:
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        yield Weight(layer, "mlp.router.expert_bias", (name,), ((experts.count,),), "whole", "layer", dtype=torch.float32)
    for expert in range(experts.count):
        yield from gated(hidden, experts.ffn_size, layer, "", f"mlp.experts.{expert}.", expert=expert)
    if experts.shared_ffn_size:
        yield from gated(hidden, experts.shared_ffn_size, layer, "mlp.shared_experts.", "mlp.shared_experts.")
