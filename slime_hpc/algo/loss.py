"""What a policy loss is: a function of tokens and the experiment's [algorithm] table; `algorithm.loss` names one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token, and which of them were clipped."""

    loss_R: torch.Tensor
    clipped_R: torch.Tensor
    """1.0 where clipping changed the loss."""
    ratio_R: torch.Tensor
    """The importance ratio, detached."""


class PolicyLoss(Protocol):
    """Each token's part; how tokens are weighed against each other is `algorithm.loss_mean`'s."""

    def __call__(self, tokens: Tokens, algorithm: Algorithm) -> TokenLoss:
        """Called for each micro-batch; answers are whole."""


def clipped(ratio_R: torch.Tensor, advantage_R: torch.Tensor, algorithm: Algorithm) -> TokenLoss:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A), and with dual_clip c > 0, for A < 0 at most -c A."""
    plain_R = ratio_R * advantage_R
    bounded_R = torch.minimum(plain_R, ratio_R.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high) * advantage_R)
    changed_R = bounded_R < plain_R
    if algorithm.dual_clip:
        floor_R = algorithm.dual_clip * advantage_R
        below_R = (advantage_R < 0) & (bounded_R < floor_R)
        bounded_R, changed_R = torch.where(below_R, floor_R, bounded_R), changed_R | below_R
    return TokenLoss(-bounded_R, changed_R.float(), ratio_R.detach())
