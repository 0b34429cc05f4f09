"""On-policy distillation: the policy's own tokens, judged by a teacher (Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, eq. 1)."""

from __future__ import annotations

import torch


def reverse_kl(logprob_R: torch.Tensor, teacher_R: torch.Tensor) -> torch.Tensor:
    """log policy - log teacher of tokens that the policy drew; the mean estimates KL(policy || teacher). It is taken off the advantage."""
    return logprob_R - teacher_R
