"""Latent attention over packed sequences: Megatron's, told each token's own position, with whole down-projections.

Without Transformer Engine Megatron splits these over tensor-parallel ranks, and the gradient of the rotated part of the keys, which all
heads share, is then that of one rank's heads alone. Here every rank holds them whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention

from slime_hpc.trainer import context
from slime_hpc.trainer.norm import RMSNorm

_EPSILON = 1e-6

# Megatron takes Transformer Engine for installed here when its own wrapper of it can be imported.
multi_latent_attention.HAVE_TE = multi_latent_attention.HAVE_TE and isinstance(multi_latent_attention.TELinear, type)


class LatentNorm(RMSNorm):
    """The norm of a latent: Hugging Face takes no epsilon from config.json here."""

    def __init__(self, config: Any, hidden_size: int, **_: Any) -> None:
        super().__init__(config, hidden_size, eps=_EPSILON)


class _WholeLinear(torch.nn.Module):
    """A projection that every tensor-parallel rank holds whole; the last `shared` outputs are used by all ranks' heads."""

    def __init__(self, config: Any, rows: int, columns: int, *, shared: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=config.params_dtype))
        # Megatron's finalize_model_grads sums the gradients of such weights over tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._sequence_parallel, self._shared = config.sequence_parallel, shared

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """(..., columns) -> (..., rows), and no bias."""
        out = F.linear(x, self.weight)
        if self._shared and not self._sequence_parallel:
            own, shared = out.split([out.size(-1) - self._shared, self._shared], dim=-1)
            out = torch.cat([own, copy_to_tensor_model_parallel_region(shared)], dim=-1)
        return out, None


class LatentAttention(MLASelfAttention):
    """MLA whose `rotary_pos_emb` is a PackedRotary."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        hidden, rotary = config.hidden_size, config.qk_pos_emb_head_dim
        if config.q_lora_rank is not None:
            self.linear_q_down_proj = _WholeLinear(config, config.q_lora_rank, hidden, shared=0)
        self.linear_kv_down_proj = _WholeLinear(config, config.kv_lora_rank + rotary, hidden, shared=rotary)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        """As Megatron's; attention_mask: offsets of the packed sequences, from which positions are read anew in a recomputation."""
        split = self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1
        group = parallel_state.get_context_parallel_group()
        offsets, length = tuple(attention_mask.tolist()), hidden_states.size(0) * split
        positions = context.positions(offsets, group.rank(), group.size(), length)
        self.rotary_pos_emb.positions = positions.to(hidden_states.device)
        return super().forward(hidden_states, attention_mask, **kwargs)
