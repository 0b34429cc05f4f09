"""CISPO: the importance weight is clipped, the gradient never is (MiniMax 2025, MiniMax-M1, eq. 4 and 5)."""

from __future__ import annotations

import torch

from slime_hpc.algo.loss import TokenLoss
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm


def cispo(tokens: Tokens, algorithm: Algorithm) -> TokenLoss:
    """-stop_gradient(clip(ratio, 1 - low, 1 + high)) A log p. The paper leaves the lower bound off: clip_low = 1."""
    ratio_R = torch.exp(tokens.logprob_R - tokens.old_logprob_R).detach()
    weight_R = ratio_R.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return TokenLoss(-weight_R * tokens.advantage_R * tokens.logprob_R, (weight_R != ratio_R).float(), ratio_R)
