"""Log-prob and entropy from hidden states without logits that outlive a chunk of rows: the form for GPUs.

Forward: one product a chunk, then two reads of its logits. Backward: the product again, one pass that turns logits into their gradient,
and the two products of the gradients. The passes are compiled where there is a GPU; on a CPU, where tests run them, they are plain torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_FORWARD_BYTES = 96 * 2**20
"""Logits that exist at once in the forward pass."""
_BACKWARD_BYTES = 320 * 2**20
"""Logits in the backward pass, beside which there are the next ones and a gradient, each of the same size."""


def _statistics(logits_RV: torch.Tensor, target_R: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
    """Peak, sum of exp, sum of exp times logit (both relative to the peak), and the target's logit; target -1: another rank's."""
    x_RV = logits_RV.float() * scale
    peak_R = x_RV.amax(dim=1)
    shifted_RV = x_RV - peak_R.unsqueeze(1)
    exp_RV = shifted_RV.exp()
    own_R = target_R >= 0
    target_logit_R = x_RV.gather(1, target_R.clamp(min=0).unsqueeze(1)).squeeze(1)
    return peak_R, exp_RV.sum(dim=1), (exp_RV * shifted_RV).sum(dim=1), torch.where(own_R, target_logit_R, 0.0)


def _gradient(
    logits_RV: torch.Tensor,
    target_R: torch.Tensor,
    log_total_R: torch.Tensor,
    entropy_R: torch.Tensor,
    grad_logprob_R: torch.Tensor,
    grad_entropy_R: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """d / d logits of what `_statistics` leads to: [i = target] - p_i for the log-prob, -p_i (log p_i + H) for the entropy."""
    logprob_RV = logits_RV.float() * scale - log_total_R.unsqueeze(1)
    prob_RV = logprob_RV.exp()
    columns_V = torch.arange(logits_RV.size(1), device=logits_RV.device)
    hit_RV = columns_V.unsqueeze(0) == target_R.unsqueeze(1)
    grad_RV = torch.where(hit_RV, grad_logprob_R.unsqueeze(1), 0.0) - grad_logprob_R.unsqueeze(1) * prob_RV
    grad_RV = grad_RV - grad_entropy_R.unsqueeze(1) * prob_RV * (logprob_RV + entropy_R.unsqueeze(1))
    return (grad_RV * scale).to(logits_RV.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def _pass(function: Callable[..., Any], on_gpu: bool) -> Callable[..., Any]:
    return _compiled(function) if on_gpu else function


class _FusedLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RH: torch.Tensor, weight_VH: torch.Tensor, target_R: torch.Tensor, temperature: float, group: Any, row_bytes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = (group.rank() if group is not None else 0) * weight_VH.size(0)
        local_R = target_R - first
        local_R = torch.where((local_R >= 0) & (local_R < weight_VH.size(0)), local_R, -1)
        statistics = _pass(_statistics, hidden_RH.is_cuda)
        rows = max(1, _FORWARD_BYTES // row_bytes)
        parts = [
            statistics(hidden @ weight_VH.t(), local, 1.0 / temperature)
            for hidden, local in zip(hidden_RH.split(rows), local_R.split(rows), strict=True)
        ]
        peak_R, total_R, weighted_R, logit_R = (torch.cat(column) for column in zip(*parts, strict=True))
        peak_R, total_R, weighted_R, logit_R = _over_ranks(peak_R, total_R, weighted_R, logit_R, group)
        log_total_R = peak_R + total_R.log()
        entropy_R = total_R.log() - weighted_R / total_R
        ctx.save_for_backward(hidden_RH, weight_VH, local_R, log_total_R, entropy_R)
        ctx.scale, ctx.row_bytes = 1.0 / temperature, row_bytes
        return logit_R - log_total_R, entropy_R

    @staticmethod
    def backward(ctx: Any, grad_logprob_R: torch.Tensor, grad_entropy_R: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        hidden_RH, weight_VH, local_R, log_total_R, entropy_R = ctx.saved_tensors
        gradient = _pass(_gradient, hidden_RH.is_cuda)
        grad_hidden_RH, grad_weight_VH = torch.empty_like(hidden_RH), torch.zeros_like(weight_VH)
        rows = max(1, _BACKWARD_BYTES // ctx.row_bytes)
        for start in range(0, len(hidden_RH), rows):
            part = slice(start, start + rows)
            hidden = hidden_RH[part]
            grad_RV = gradient(
                hidden @ weight_VH.t(),
                local_R[part],
                log_total_R[part],
                entropy_R[part],
                grad_logprob_R[part],
                grad_entropy_R[part],
                ctx.scale,
            )
            torch.mm(grad_RV, weight_VH, out=grad_hidden_RH[part])
            grad_weight_VH.addmm_(grad_RV.t(), hidden)
        return grad_hidden_RH, grad_weight_VH, None, None, None, None


def _over_ranks(
    peak_R: torch.Tensor, total_R: torch.Tensor, weighted_R: torch.Tensor, logit_R: torch.Tensor, group: Any
) -> tuple[torch.Tensor, ...]:
    """The same of the whole vocabulary: sums that are relative to one rank's peak, moved to the highest."""
    if group is None or group.size() == 1:
        return peak_R, total_R, weighted_R, logit_R
    highest_R = peak_R.clone()
    dist.all_reduce(highest_R, op=dist.ReduceOp.MAX, group=group)
    drop_R = peak_R - highest_R
    sums = torch.stack([total_R * drop_R.exp(), (weighted_R + drop_R * total_R) * drop_R.exp(), logit_R])
    dist.all_reduce(sums, group=group)
    return highest_R, sums[0], sums[1], sums[2]


def from_hidden(
    hidden_RH: torch.Tensor, weight_VH: torch.Tensor, target_R: torch.Tensor, *, temperature: float, group: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy (R,), fp32; see `trainer.logprob.from_hidden`."""
    row_bytes = weight_VH.size(0) * hidden_RH.element_size()
    result: tuple[torch.Tensor, torch.Tensor] = _FusedLogProb.apply(hidden_RH, weight_VH, target_R, temperature, group, row_bytes)
    return result
