"""DeepSeek-V3: latent attention (MLA), first layers dense, then experts chosen by sigmoid scores in groups, and a shared one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from slime_hpc.errors import DataError
from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.latent import LatentAttention, LatentNorm
from slime_hpc.trainer.models.blocks import feed_forward, norm, weight
from slime_hpc.trainer.models.family import Family
from slime_hpc.trainer.models.sigmoid import sigmoid_options


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    yield norm(layer, "input_layernorm.weight", "input_layernorm.weight", sizes.hidden_size)
    yield from _attention(sizes, layer)
    yield from feed_forward(sizes, layer, correction_bias=True)


def _attention(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    latent, hidden, heads = sizes.latent, sizes.hidden_size, sizes.num_heads
    assert latent is not None
    query, rank, kv = heads * (latent.plain_dim + latent.rotary_dim), latent.query_rank, latent.kv_rank
    own, hf = "self_attention.", "self_attn."
    if rank:
        yield weight(layer, f"{own}linear_q_down_proj.weight", "whole", (f"{hf}q_a_proj.weight", (rank, hidden)))
        yield norm(layer, f"{own}q_layernorm.weight", f"{hf}q_a_layernorm.weight", rank)
        yield weight(layer, f"{own}linear_q_up_proj.weight", "rows", (f"{hf}q_b_proj.weight", (query, rank)))
    else:
        yield weight(layer, f"{own}linear_q_proj.weight", "rows", (f"{hf}q_proj.weight", (query, hidden)))
    down, up = (kv + latent.rotary_dim, hidden), (heads * (latent.plain_dim + latent.value_dim), kv)
    yield weight(layer, f"{own}linear_kv_down_proj.weight", "whole", (f"{hf}kv_a_proj_with_mqa.weight", down))
    yield norm(layer, f"{own}kv_layernorm.weight", f"{hf}kv_a_layernorm.weight", kv)
    yield weight(layer, f"{own}linear_kv_up_proj.weight", "rows", (f"{hf}kv_b_proj.weight", up))
    yield weight(layer, f"{own}linear_proj.weight", "columns", (f"{hf}o_proj.weight", (hidden, heads * latent.value_dim)))


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    latent = sizes.latent
    assert latent is not None
    if not values.get("rope_interleave", True):
        raise DataError("Latent attention is rotated in interleaved pairs.", where="config.json of model.path: rope_interleave")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    return {
        **sigmoid_options(values),
        "multi_latent_attention": True,
        "q_lora_rank": latent.query_rank or None,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.plain_dim,
        "qk_pos_emb_head_dim": latent.rotary_dim,
        "v_head_dim": latent.value_dim,
        # Angles come from `trainer.rotary`; Megatron scales the attention by these two (YaRN, arXiv 2309.00071, section 3.4).
        "rope_type": "rope",
        "rotary_scaling_factor": float(rope.get("factor", 1.0)),
        "mscale_all_dim": float(rope.get("mscale_all_dim", 0.0)),
    }


def _adapt(spec: ModuleSpec, config: TransformerConfig) -> None:
    attention = spec.submodules.self_attention
    attention.module = LatentAttention
    attention.submodules.q_layernorm = attention.submodules.kv_layernorm = LatentNorm


DEEPSEEK_V3 = Family(layer=_layer, options=_options, adapt=_adapt)
