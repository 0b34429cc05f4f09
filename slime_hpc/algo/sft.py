"""Cross-entropy: every trained token alike, whatever its answer was worth."""

from __future__ import annotations

import torch

from slime_hpc.algo.loss import TokenLoss
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm


def sft(tokens: Tokens, algorithm: Algorithm) -> TokenLoss:
    """-log p. The advantage has no part in it, and nothing is clipped."""
    ratio_R = torch.exp(tokens.logprob_R - tokens.old_logprob_R).detach()
    return TokenLoss(-tokens.logprob_R, torch.zeros_like(ratio_R), ratio_R)
