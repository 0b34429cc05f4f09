"""The policy: Megatron's GPT model, built from a Hugging Face config.json, that answers with log-probs instead of logits.

Knows the architectures of `plan.model_config`; reads no weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

from slime_hpc.config.schema import Experiment, Trainer
from slime_hpc.errors import DataError
from slime_hpc.plan.model_config import Experts, ModelConfig, read_model_config
from slime_hpc.trainer import context
from slime_hpc.trainer.latent import LatentAttention
from slime_hpc.trainer.layers import block
from slime_hpc.trainer.logprob import from_hidden
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.models.registry import FAMILIES
from slime_hpc.trainer.options import configure, of_model
from slime_hpc.trainer.rotary import PackedRotary, inverse_frequencies

_UNFUSED = dict.fromkeys(
    (
        "bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion", "apply_rope_fusion",
        "persist_layer_norm",
    ),
    False,
)  # fmt: skip
"""Kernels of Transformer Engine and Apex, which the trainer does without."""


@dataclasses.dataclass(frozen=True, slots=True)
class Blueprint:
    """A model folder, read: sizes, and the whole config.json."""

    sizes: ModelConfig
    values: Mapping[str, Any]

    @classmethod
    def read(cls, experiment: Experiment) -> Blueprint:
        """Raises DataError for a folder that cannot be trained."""
        folder = Path(experiment.model.path)
        sizes = read_model_config(folder, needs_weights=experiment.model.init == "pretrained")
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for key, supported in (("attention_bias", sizes.qkv_bias), ("mlp_bias", False)):
            if values.get(key) and not supported:
                raise DataError(f"{sizes.architecture} with {key} is not supported.", where=f"{folder / 'config.json'}: {key}")
        return cls(sizes, values)


def transformer_config(blueprint: Blueprint, experiment: Experiment) -> TransformerConfig:
    """Megatron's configuration. Raises ConfigError for a key of trainer.megatron that Megatron does not know or accept."""
    sizes, trainer = blueprint.sizes, experiment.trainer
    dtype = getattr(torch, experiment.model.dtype)
    values: dict[str, Any] = {
        **_UNFUSED,
        "num_layers": sizes.num_layers,
        "hidden_size": sizes.hidden_size,
        "ffn_hidden_size": sizes.ffn_size,
        "num_attention_heads": sizes.num_heads,
        "num_query_groups": sizes.num_kv_heads,
        "kv_channels": sizes.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": float(blueprint.values.get("rms_norm_eps", 1e-6)),
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "add_qkv_bias": sizes.qkv_bias,
        "qk_layernorm": sizes.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "tensor_model_parallel_size": trainer.tensor_parallel,
        "pipeline_model_parallel_size": trainer.pipeline_parallel,
        "context_parallel_size": trainer.context_parallel,
        "sequence_parallel": trainer.sequence_parallel and trainer.tensor_parallel > 1,
        "batch_p2p_comm": False,
        "deterministic_mode": False,
    }
    if trainer.pipeline_parallel > 1:
        # Micro-batches differ in length; Megatron's check of this flag wants the dispatcher named even without experts.
        values |= {"variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}
    if trainer.recompute:
        values |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if sizes.experts:
        values |= _expert_options(sizes.experts, trainer)
    values |= FAMILIES[sizes.architecture].options(sizes, blueprint.values)
    kind = MLATransformerConfig if sizes.latent else TransformerConfig
    return configure(kind, values, of_model(trainer.megatron, kind))


def _expert_options(experts: Experts, trainer: Trainer) -> dict[str, Any]:
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.top_k,
        "moe_ffn_hidden_size": experts.ffn_size,
        "moe_shared_expert_intermediate_size": experts.shared_ffn_size or None,
        "moe_layer_freq": 1 if all(experts.layers) else [int(sparse) for sparse in experts.layers],
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": False,
        "moe_permute_fusion": False,
        "moe_router_dtype": "fp32",
        # The loss of the algorithm alone trains the router.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_bias_update_rate": 0.0,
        "expert_model_parallel_size": trainer.expert_parallel,
        "expert_tensor_parallel_size": trainer.expert_tensor_parallel,
    }


class PolicyModel(GPTModel):
    """One pipeline stage of the policy, over packed sequences."""

    def forward(self, batch: MicroBatch, *, temperature: float) -> torch.Tensor:
        """Last stage: (2, R), fp32, log-prob and entropy of every response token at `temperature`; other stages: hidden states."""
        self.rotary_pos_emb.positions = batch.positions_T
        self._batch, self._temperature = batch, temperature
        return super().forward(batch.tokens_T.unsqueeze(0), batch.positions_T.unsqueeze(0), batch.offsets)

    def _postprocess(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        if not self.post_process:
            return hidden_states
        tp, batch = self.pg_collection.tp, self._batch
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False, group=tp)
        hidden_QH = copy_to_tensor_model_parallel_region(hidden_states.squeeze(1)[batch.rows_Q], group=tp)
        weight_VH = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else self.output_layer.weight
        own_2Q = torch.stack(from_hidden(hidden_QH, weight_VH, batch.targets_Q, temperature=self._temperature, group=tp))
        cp = self.pg_collection.cp
        return own_2Q if cp.size() == 1 else context.complete(own_2Q, batch.own_Q, batch.index_R.numel(), cp)


Kind = TypeVar("Kind", bound=PolicyModel)


def build(blueprint: Blueprint, config: TransformerConfig, device: torch.device, kind: type[Kind] = PolicyModel) -> Kind:  # type: ignore[assignment]
    """This rank's stage, with weights that are not yet set."""
    sizes = blueprint.sizes
    model = kind(
        config,
        block(config, sizes),
        vocab_size=sizes.vocab_size,
        max_sequence_length=sizes.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=sizes.tied,
        position_embedding_type="rope",
    )
    _mark_shards(model)
    frequencies = inverse_frequencies(blueprint.values, sizes.rotary_dim)
    model.rotary_pos_emb = PackedRotary(frequencies, interleaved=config.rotary_interleaved)
    for module in model.modules():
        if isinstance(module, LatentAttention):
            module.rotary_pos_emb = model.rotary_pos_emb
    return model.to(device)


def _mark_shards(model: PolicyModel) -> None:
    """Say which parameters are split, and which are experts'; Megatron does so only where it draws weights, and the gradient norm counts
    others but once.
    """
    for module in model.modules():
        dim = 1 if isinstance(module, RowParallelLinear) else 0
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
            for parameter in module.parameters(recurse=False):
                parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
                parameter.partition_dim, parameter.partition_stride = dim, 1  # type: ignore[attr-defined]
                # Megatron does so only with expert parallelism; experts whose tensor parallelism differs have other replicas too.
                parameter.allreduce = not getattr(module, "is_expert", False)  # type: ignore[attr-defined]
