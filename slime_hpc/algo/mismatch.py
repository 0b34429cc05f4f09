"""How far the trainer's log-probs are from those the engine reported for the same tokens. Sums; the divisors are tokens and answers.

With rho = trainer / engine, of a token or a whole answer: chi2 is the mean of rho^2 - 1, the variance that importance weights would have.
"""

from __future__ import annotations

import torch

from slime_hpc.algo.correction import LARGEST_LOG
from slime_hpc.algo.tokens import Tokens

BY_TOKEN = ("mismatch_kl", "mismatch_k3", "mismatch_chi2", "log_ppl_trainer", "log_ppl_engine")
BY_SAMPLE = ("mismatch_chi2_sequence",)


def measure(tokens: Tokens) -> dict[str, torch.Tensor]:
    """The sums by name: those of BY_TOKEN over trained tokens, those of BY_SAMPLE over answers that have any."""
    trainer_R, engine_R, mask_R = tokens.old_logprob_R.double(), tokens.engine_logprob_R.double(), tokens.mask_R
    log_R = (trainer_R - engine_R).clamp(-LARGEST_LOG, LARGEST_LOG)
    log_S = tokens.sum_S(log_R).clamp(-LARGEST_LOG, LARGEST_LOG)
    by_token = (engine_R - trainer_R, torch.expm1(log_R) - log_R, torch.expm1(2 * log_R), -trainer_R, -engine_R)
    sums = {name: torch.where(mask_R, values, 0.0).sum() for name, values in zip(BY_TOKEN, by_token, strict=True)}
    # An answer without a trained token has log ratio 0, and adds nothing.
    return {**sums, "mismatch_chi2_sequence": torch.expm1(2 * log_S).sum()}
