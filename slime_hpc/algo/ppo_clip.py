"""PPO's clipped loss (Schulman et al. 2017, eq. 7).

With a bound of its own on each side (Yu et al. 2025, DAPO, eq. 10) and, if asked for, one more for negative advantages (Ye et al. 2020,
arXiv:1912.09729, dual clip).
"""

from __future__ import annotations

import torch

from slime_hpc.algo.loss import TokenLoss, clipped
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm


def ppo_clip(tokens: Tokens, algorithm: Algorithm) -> TokenLoss:
    """The ratio is each token's own."""
    return clipped(torch.exp(tokens.logprob_R - tokens.old_logprob_R), tokens.advantage_R, algorithm)
