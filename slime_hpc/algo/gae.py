"""Generalized advantage estimation, from a critic's values (Schulman et al. 2016, arXiv:1506.02438, eq. 11, 12 and 16).

Tokens that are not trained on are no actions: the estimate goes over an answer's trained tokens as if they stood side by side.
"""

from __future__ import annotations

import torch

from slime_hpc.algo.advantage import Advantage, returns
from slime_hpc.algo.reinforce import plain

GAE = Advantage(plain, critic=True)


def gae(
    reward_R: torch.Tensor, value_R: torch.Tensor, mask_R: torch.Tensor, sample_R: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, each (R,), 0 where the mask is.

    delta_t = r_t + gamma V_(t+1) - V_t, with value 0 after an answer's last trained token; A_t = sum of (gamma lam)^(u - t) delta_u;
    the return, which the critic learns, is A_t + V_t.
    """
    reward_M, value_M, sample_M = reward_R[mask_R].double(), value_R[mask_R].double(), sample_R[mask_R]
    following_M = torch.zeros_like(value_M)
    following_M[:-1] = torch.where(sample_M[1:] == sample_M[:-1], value_M[1:], 0.0)
    advantage_M = returns(reward_M + gamma * following_M - value_M, sample_M, gamma=gamma * lam)

    def spread(values_M: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value_R).masked_scatter(mask_R, values_M.to(value_R.dtype))

    return spread(advantage_M), spread(advantage_M + value_M)
