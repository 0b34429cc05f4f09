"""GLM-4 of April 2025 (0414): norms after attention and feed-forward part too, half of each head rotated, in interleaved pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer.convert import Weight
from slime_hpc.trainer.models.blocks import attention, norm, weight
from slime_hpc.trainer.models.family import Family
from slime_hpc.trainer.norm import PostNorm


def _layer(sizes: ModelConfig, layer: int) -> Iterator[Weight]:
    hidden, ffn = sizes.hidden_size, sizes.ffn_size
    yield from attention(sizes, layer)
    yield norm(layer, "self_attn_bda.weight", "post_self_attn_layernorm.weight", hidden)
    yield norm(layer, "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", hidden)
    yield weight(layer, "mlp.linear_fc1.weight", "gate_up_fused", ("mlp.gate_up_proj.weight", (2 * ffn, hidden)))
    yield weight(layer, "mlp.linear_fc2.weight", "columns", ("mlp.down_proj.weight", (hidden, ffn)))
    yield norm(layer, "mlp_bda.weight", "post_mlp_layernorm.weight", hidden)


def _options(sizes: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"rotary_interleaved": True}


def _adapt(spec: ModuleSpec, config: TransformerConfig) -> None:
    post = ModuleSpec(module=PostNorm, params={"config": config, "hidden_size": config.hidden_size, "eps": config.layernorm_epsilon})
    spec.submodules.self_attn_bda = spec.submodules.mlp_bda = post


GLM4 = Family(layer=_layer, options=_options, adapt=_adapt)
