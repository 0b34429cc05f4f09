"""Specs of a pipeline stage's layers: Megatron's local modules with our attention, norms and router, dense or with experts."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import TransformerLayer, get_transformer_layer_offset

from slime_hpc.plan.model_config import ModelConfig
from slime_hpc.trainer import routes
from slime_hpc.trainer.attention import PackedAttention
from slime_hpc.trainer.models.registry import FAMILIES
from slime_hpc.trainer.norm import RMSNorm
from slime_hpc.trainer.router import PackedRouter


class PolicyLayer(TransformerLayer):
    """A layer that says which pack it works on before its router chooses, in the backward pass's recomputation too."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As Megatron's; attention_mask: offsets of the packed sequences."""
        routes.enter(attention_mask)
        return super().forward(hidden_states, attention_mask, *args, **kwargs)


def block(config: TransformerConfig, sizes: ModelConfig) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage, and the norm after the last."""
    first, count = get_transformer_layer_offset(config), get_num_layers_to_build(config)
    sparse = sizes.experts.layers[first : first + count] if sizes.experts else (False,) * count
    specs = {kind: _layer(config, sizes, experts=kind) for kind in set(sparse)}
    return TransformerBlockSubmodules(layer_specs=[specs[kind] for kind in sparse], layer_norm=RMSNorm)


def _layer(config: TransformerConfig, sizes: ModelConfig, *, experts: bool) -> ModuleSpec:
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if experts else None,
        normalization=config.normalization,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
    )
    layer.module = PolicyLayer
    parts, attention = layer.submodules, layer.submodules.self_attention.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if experts:
        parts.mlp.submodules.router = PackedRouter
    FAMILIES[sizes.architecture].adapt(layer, config)
    return layer
