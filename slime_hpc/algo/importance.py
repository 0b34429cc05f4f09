"""Importance weights trainer / engine, bounded in one of three ways.

truncate   min(w, high)                 TIS: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"
clip       w within [low, high]
mask       w, or 0 outside [low, high]  IcePop: Ling team 2025, arXiv:2510.18855
"""

from __future__ import annotations

from typing import Literal

import torch

from slime_hpc.algo.correction import Level, Weights, log_ratio
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Correction


def none(tokens: Tokens, correction: Correction) -> Weights:
    """Every token counts once."""
    return Weights(torch.ones_like(tokens.old_logprob_R), torch.zeros_like(tokens.old_logprob_R))


def tis(tokens: Tokens, correction: Correction) -> Weights:
    """Each token's own ratio, at most `high`."""
    return _bounded(tokens, correction, "token", "truncate")


def icepop(tokens: Tokens, correction: Correction) -> Weights:
    """Each token's own ratio, and no token outside [low, high]."""
    return _bounded(tokens, correction, "token", "mask")


def importance(tokens: Tokens, correction: Correction) -> Weights:
    """The ratio at `level`, bounded as `mode` says (sequence: the whole answer's; geometric: its geometric mean over tokens)."""
    return _bounded(tokens, correction, correction.level, correction.mode)


def _bounded(tokens: Tokens, correction: Correction, level: Level, mode: Literal["truncate", "clip", "mask"]) -> Weights:
    ratio_R = log_ratio(tokens, level).exp()
    low, high = correction.low, correction.high
    match mode:
        case "truncate":
            weight_R = ratio_R.clamp(max=high)
        case "clip":
            weight_R = ratio_R.clamp(low, high)
        case "mask":
            weight_R = torch.where((ratio_R >= low) & (ratio_R <= high), ratio_R, 0.0)
    return Weights(weight_R, (weight_R != ratio_R).float())
