"""What an answer's reward is worth, and how that becomes an advantage of each of its tokens.

An advantage has two steps. The score of an answer compares it with its siblings; it needs the rewards of the whole batch, is NumPy, and is
computed alike on every rank. Then the score is credited to tokens, with the KL penalty where that is part of the reward; this needs only
a rank's own answers, and for whitening three sums over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from slime_hpc.algo.tokens import totals

_EPS = 1e-8


class Score(Protocol):
    """Scores (N,) from rewards (N,) and the prompt group of each answer (N,)."""

    def __call__(
        self, reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool
    ) -> npt.NDArray[np.float64]:
        """Called on every rank alike, with the whole batch."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """An advantage estimator; `algorithm.advantage` names one."""

    score: Score
    discounted: bool = False
    """A token is worth the discounted rewards from it on, the score being the reward of the last trained one; else each has the score."""
    whiten: bool = False
    """Whitening is part of the algorithm."""
    critic: bool = False
    """Tokens are credited by GAE from a critic's values, the score being the reward of the last trained one."""


def group_means(values_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Mean of each answer's group, and the group's size, each (N,)."""
    _, index_N, count_G = np.unique(group_N, return_inverse=True, return_counts=True)
    return (np.bincount(index_N, values_N) / count_G)[index_N], count_G[index_N]


def credit(
    score_R: torch.Tensor, kl_R: torch.Tensor | None, mask_R: torch.Tensor, sample_R: torch.Tensor, *, discounted: bool, gamma: float
) -> torch.Tensor:
    """(R,) advantages of the tokens of whole answers, from each token's answer's score and weighted KL penalty.

    Plain: score - penalty. Discounted (Hu et al. 2025, REINFORCE++): the sum of gamma^(u - t) r_u over u >= t, where r are token rewards.
    """
    if discounted:
        return returns(token_rewards(score_R, kl_R, mask_R, sample_R), sample_R, gamma=gamma)
    return score_R if kl_R is None else score_R - torch.where(mask_R, kl_R, 0.0)


def token_rewards(score_R: torch.Tensor, kl_R: torch.Tensor | None, mask_R: torch.Tensor, sample_R: torch.Tensor) -> torch.Tensor:
    """(R,) minus the penalty for each trained token; the last trained one of an answer has its score as well."""
    position_R = torch.arange(len(score_R), device=score_R.device)
    count = int(sample_R[-1]) + 1 if len(sample_R) else 0
    last_S = position_R.new_full((count,), -1).scatter_reduce(0, sample_R, torch.where(mask_R, position_R, -1), "amax")
    reward_R = torch.where(position_R == last_S[sample_R], score_R, 0.0)
    return reward_R if kl_R is None else reward_R - torch.where(mask_R, kl_R, 0.0)


def returns(reward_R: torch.Tensor, sample_R: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """(R,) discounted sums of the rewards from each token to its answer's end, in as many passes as the length has binary digits.

    After a pass with distance d, a token's sum holds the 2 d rewards from it on.
    """
    longest = int(torch.bincount(sample_R).max()) if len(sample_R) else 0
    total_R, distance = reward_R.double(), 1
    while distance < longest:
        later = torch.where(sample_R[distance:] == sample_R[:-distance], total_R[distance:], 0.0)
        total_R = torch.cat([total_R[:-distance] + gamma**distance * later, total_R[-distance:]])
        distance *= 2
    return total_R.to(reward_R.dtype)


def whiten(values_R: torch.Tensor, mask_R: torch.Tensor, sum_ranks: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """(R,) values with mean 0 and variance 1 over the trained tokens of all ranks (Bessel's correction; 1e-8 guards equal values).

    `sum_ranks` adds a small tensor over the ranks. Collective, also for a rank without a trained token.
    """
    values_R = values_R.double()
    count, total = sum_ranks(totals(mask_R.double(), torch.where(mask_R, values_R, 0.0))).unbind()
    centred_R = values_R - total / count.clamp(min=1)
    (squares,) = sum_ranks(totals(torch.where(mask_R, centred_R**2, 0.0))).unbind()
    return (centred_R * torch.rsqrt(squares / (count - 1).clamp(min=1) + _EPS)).float()
