"""Log-probability and entropy of tokens from hidden states, with the vocabulary split over tensor-parallel ranks.

No rank ever holds the logits of the whole vocabulary, and no more of them than a chunk of rows; the gradient is exact.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from slime_hpc.trainer import fused_logprob

_CHUNK_ELEMENTS = 2**27
"""Logits that may exist at once (fp32: 512 MiB)."""


class _VocabParallelLogProb(torch.autograd.Function):
    """Logits of this rank's share of the vocabulary -> log-prob of the target and entropy of each row."""

    @staticmethod
    def forward(ctx: Any, logits_RV: torch.Tensor, target_R: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        size, rank = (group.size(), group.rank()) if group is not None else (1, 0)
        first = rank * logits_RV.size(1)
        peak_R = logits_RV.amax(dim=1)
        if size > 1:
            dist.all_reduce(peak_R, op=dist.ReduceOp.MAX, group=group)
        shifted_RV = logits_RV - peak_R.unsqueeze(1)
        exp_RV = shifted_RV.exp()
        own_R = (target_R >= first) & (target_R < first + logits_RV.size(1))
        local_R = torch.where(own_R, target_R - first, 0)
        sums = torch.stack(
            [
                exp_RV.sum(dim=1),
                (exp_RV * shifted_RV).sum(dim=1),
                torch.where(own_R, shifted_RV.gather(1, local_R.unsqueeze(1)).squeeze(1), 0.0),
            ]
        )
        if size > 1:
            dist.all_reduce(sums, group=group)
        total_R, weighted_R, target_logit_R = sums
        log_total_R = total_R.log()
        entropy_R = log_total_R - weighted_R / total_R
        prob_RV = exp_RV / total_R.unsqueeze(1)
        ctx.save_for_backward(prob_RV, shifted_RV - log_total_R.unsqueeze(1), entropy_R, own_R, local_R)
        return target_logit_R - log_total_R, entropy_R

    @staticmethod
    def backward(ctx: Any, grad_logprob_R: torch.Tensor, grad_entropy_R: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        prob_RV, logprob_RV, entropy_R, own_R, local_R = ctx.saved_tensors
        # d logprob / d logit_i = [i = target] - p_i;  d H / d logit_i = -p_i (log p_i + H)
        grad_RV = -grad_logprob_R.unsqueeze(1) * prob_RV - grad_entropy_R.unsqueeze(1) * prob_RV * (logprob_RV + entropy_R.unsqueeze(1))
        grad_RV.scatter_add_(1, local_R.unsqueeze(1), torch.where(own_R, grad_logprob_R, 0.0).unsqueeze(1))
        return grad_RV, None, None


def from_logits(logits_RV: torch.Tensor, target_R: torch.Tensor, group: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy (R,), fp32, from fp32 logits of this rank's share of the vocabulary (R, V / tp)."""
    result: tuple[torch.Tensor, torch.Tensor] = _VocabParallelLogProb.apply(logits_RV, target_R, group)
    return result


def from_hidden(
    hidden_RH: torch.Tensor, weight_VH: torch.Tensor, target_R: torch.Tensor, *, temperature: float, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from hidden states and this rank's rows of the output weight; logits exist for a chunk of rows at a time.

    The gradient of hidden_RH is this rank's part: it must come through `copy_to_tensor_model_parallel_region`.
    """

    # A kernel has no grid for the rows of a context-parallel rank that predicts nothing.
    if hidden_RH.is_cuda and len(hidden_RH):
        return fused_logprob.from_hidden(hidden_RH, weight_VH, target_R, temperature=temperature, group=group)

    def part(hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return from_logits(F.linear(hidden, weight_VH).float() / temperature, target, group)

    rows = max(1, _CHUNK_ELEMENTS // weight_VH.size(0))
    if len(hidden_RH) <= rows:
        return part(hidden_RH, target_R)
    pairs = zip(hidden_RH.split(rows), target_R.split(rows), strict=True)
    parts = [checkpoint(part, hidden, target, use_reentrant=False) for hidden, target in pairs]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
