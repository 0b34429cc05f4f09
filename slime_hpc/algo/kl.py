"""Estimators of the KL divergence of the policy from the reference, from the log-probs of tokens that the policy drew (Schulman 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch

_BOUND = 10.0

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logprob_R, reference_R) -> (R,)"""


def k1(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """log p - log q: unbiased as a value; its gradient has expectation zero, so as a loss it only adds noise."""
    return logprob_R - reference_R


def k2(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """(log p - log q)^2 / 2: biased, low variance."""
    return 0.5 * (logprob_R - reference_R) ** 2


def k3(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative."""
    log_ratio_R = reference_R - logprob_R
    return torch.expm1(log_ratio_R) - log_ratio_R


def low_var_kl(logprob_R: torch.Tensor, reference_R: torch.Tensor) -> torch.Tensor:
    """k3, at most 10, so that one odd token cannot own the gradient."""
    return k3(logprob_R, reference_R).clamp(-_BOUND, _BOUND)


def unbiased(kl_R: torch.Tensor, logprob_R: torch.Tensor, old_logprob_R: torch.Tensor) -> torch.Tensor:
    """The estimate times p / p_old, so that its gradient is unbiased for tokens that the old policy drew (DeepSeek-V3.2, eq. 7)."""
    return kl_R * torch.exp(logprob_R - old_logprob_R)
