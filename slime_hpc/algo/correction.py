"""Corrections for tokens that were drawn by other weights, or other kernels, than those the trainer holds.

What `[algorithm.correction]` asks for, in this order: weights of tokens (a function that `kind` names), rejection outside bounds at a level
of its own, a veto on answers with a token that the trainer holds impossible, and masking of answers that are bad and far off-policy.
Rejected tokens add nothing to the policy loss, but still count in its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Correction

LARGEST_LOG = 20.0
"""Log ratios are cut there: exp stays finite."""

Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True)
class Weights:
    """What a correction makes of tokens, each (R,): weights >= 0 of the policy loss, and 1.0 where a bound changed one."""

    weight_R: torch.Tensor
    bounded_R: torch.Tensor


@dataclass(frozen=True, slots=True)
class Corrected:
    """Weights with rejection applied (0 for a rejected token), and what each part did, as 0 or 1 of each token."""

    weight_R: torch.Tensor
    bounded_R: torch.Tensor
    rejected_R: torch.Tensor
    vetoed_R: torch.Tensor
    off_policy_R: torch.Tensor


class Correct(Protocol):
    """Weights of tokens; `algorithm.correction.kind` names one."""

    def __call__(self, tokens: Tokens, correction: Correction) -> Weights:
        """Called for each micro-batch; answers are whole."""


def log_ratio(tokens: Tokens, level: Level) -> torch.Tensor:
    """(R,) log of trainer / engine, cut at +-20: of the token, or of its whole answer: the sum (sequence) or the mean (geometric)."""
    token_R = (tokens.old_logprob_R - tokens.engine_logprob_R).detach()
    if level == "sequence":
        token_R = tokens.sum_S(token_R)[tokens.sample_R]
    elif level == "geometric":
        token_R = tokens.mean_S(token_R)[tokens.sample_R]
    return token_R.clamp(-LARGEST_LOG, LARGEST_LOG)


def correct(tokens: Tokens, correction: Correction, weigh: Correct) -> Corrected:
    """All that the table asks for."""
    weights = weigh(tokens, correction)
    nothing_R = torch.zeros_like(weights.weight_R, dtype=torch.bool)
    rejected_R = _outside(tokens, correction) if correction.reject != "none" else nothing_R
    vetoed_R = _impossible(tokens, correction.veto) if correction.veto else nothing_R
    off_policy_R = _off_policy(tokens, correction.off_policy_kl) if correction.off_policy_kl else nothing_R
    weight_R = torch.where(rejected_R | vetoed_R | off_policy_R, 0.0, weights.weight_R)
    return Corrected(weight_R, weights.bounded_R, rejected_R.float(), vetoed_R.float(), off_policy_R.float())


def _outside(tokens: Tokens, correction: Correction) -> torch.Tensor:
    assert correction.reject != "none"
    ratio_R = log_ratio(tokens, correction.reject).exp()
    return (ratio_R < correction.reject_low) | (ratio_R > correction.reject_high)


def _impossible(tokens: Tokens, veto: float) -> torch.Tensor:
    """Answers of which the trainer gives a trained token less than `veto` times the engine's probability."""
    return tokens.sum_S((log_ratio(tokens, "token").exp() < veto).float())[tokens.sample_R] > 0


def _off_policy(tokens: Tokens, most: float) -> torch.Tensor:
    """Answers with a negative advantage whose mean log (engine / current) is above `most` (DeepSeek-V3.2 2025, eq. 9)."""
    distance_S = tokens.mean_S((tokens.engine_logprob_R - tokens.logprob_R).detach())
    return (tokens.advantage_R < 0) & (distance_S[tokens.sample_R] > most)
