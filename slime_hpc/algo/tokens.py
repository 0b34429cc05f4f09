"""What a loss and a correction see: the response tokens of whole answers, flat, and sums over each answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def totals(*values: torch.Tensor) -> torch.Tensor:
    """The sum of each."""
    return torch.stack([value.sum() for value in values])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """R response tokens of S whole answers, one answer after the other. Only `logprob_R` has a gradient."""

    logprob_R: torch.Tensor
    """Of the weights being trained."""
    old_logprob_R: torch.Tensor
    """Of the weights before the step: what the importance ratio divides by."""
    engine_logprob_R: torch.Tensor
    """As the engine reported it when it drew the token."""
    advantage_R: torch.Tensor
    mask_R: torch.Tensor
    """True where the token is trained on."""
    sample_R: torch.Tensor
    """Which answer the token belongs to, 0 .. S - 1, ascending."""
    num_samples: int
    """S."""

    def sum_S(self, values_R: torch.Tensor) -> torch.Tensor:
        """(S,) sums over each answer's trained tokens."""
        zeros_S = values_R.new_zeros(self.num_samples)
        return zeros_S.index_add(0, self.sample_R, torch.where(self.mask_R, values_R, 0.0))

    def mean_S(self, values_R: torch.Tensor) -> torch.Tensor:
        """(S,) means over each answer's trained tokens; 0 for an answer without any."""
        return self.sum_S(values_R) / self.sum_S(torch.ones_like(values_R)).clamp(min=1)
