"""GSPO: one importance ratio for a whole answer (Zheng et al. 2025, eq. 5 and 7). Its bounds are some thousand times tighter than PPO's."""

from __future__ import annotations

import torch

from slime_hpc.algo.loss import TokenLoss, clipped
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm


def gspo(tokens: Tokens, algorithm: Algorithm) -> TokenLoss:
    """ratio = exp(mean over the answer's trained tokens of log p / p_old), the same for all of them."""
    ratio_S = torch.exp(tokens.mean_S(tokens.logprob_R - tokens.old_logprob_R))
    return clipped(ratio_S[tokens.sample_R], tokens.advantage_R, algorithm)
