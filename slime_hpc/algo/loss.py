"""Losses of single tokens, on flat response tokens (R,). Each has a twin in `algo.numpy_twin`. Knows nothing of models or batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token, and which of them were clipped."""

    loss_R: torch.Tensor
    clipped_R: torch.Tensor
    """1.0 where clipping took the gradient away."""


def ppo_clip(
    logprob_R: torch.Tensor, old_logprob_R: torch.Tensor, advantage_R: torch.Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A) (Schulman et al. 2017, eq. 7; asymmetric bounds: Yu et al. 2025, DAPO)."""
    ratio_R = torch.exp(logprob_R - old_logprob_R)
    plain_R = ratio_R * advantage_R
    bounded_R = ratio_R.clamp(1 - clip_low, 1 + clip_high) * advantage_R
    return TokenLoss(-torch.minimum(plain_R, bounded_R), (bounded_R < plain_R).float())


def k1(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """log p - log q: unbiased as a value; its gradient has expectation zero, so as a loss it only adds noise."""
    return logprob_R - reference_R


def k2(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """(log p - log q)^2 / 2: biased, low variance."""
    return 0.5 * (logprob_R - reference_R) ** 2


def k3(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative (Schulman 2020, "Approximating KL divergence")."""
    log_ratio_R = reference_R - logprob_R
    return torch.expm1(log_ratio_R) - log_ratio_R


LOSSES: dict[str, Callable[..., TokenLoss]] = {"ppo_clip": ppo_clip}
KL_ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
