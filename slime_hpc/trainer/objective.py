"""The loss of a micro-batch: the policy loss with its correction, the KL term and the entropy bonus, and what is metered of each."""

from __future__ import annotations

import dataclasses

import torch

from slime_hpc.algo import kl, mismatch
from slime_hpc.algo.correction import Corrected, correct
from slime_hpc.algo.registry import Parts
from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm
from slime_hpc.trainer.estimate import Estimate
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.share import Share

BY_TOKEN = (
    "logprob_abs_diff_mean", "logprob_abs_diff_mean_unrouted", "old_version_missing", "kl", "teacher_kl", "entropy", "clip_fraction",
    *mismatch.BY_TOKEN, "correction_weight", "correction_bounded", "rejected_fraction", "vetoed_fraction", "off_policy_fraction",
)  # fmt: skip
SUMS = ("loss", "trained", "samples", *BY_TOKEN, *mismatch.BY_SAMPLE)
MAXIMA = ("logprob_abs_diff_max", "ratio_max")


class Objective:
    """The loss over a share; the flat arrays (R,) are the share's, in its order."""

    def __init__(
        self,
        algorithm: Algorithm,
        parts: Parts,
        share: Share,
        meter: Meter,
        given: Estimate,
    ) -> None:
        self._algorithm, self._parts, self._share, self._meter = algorithm, parts, share, meter
        self._advantage_R, self._old_R = given.advantage_R, given.old_R
        self._reference_R = given.reference_R if algorithm.kl_in == "loss" else None

    def __call__(self, batch: MicroBatch, logprob_R: torch.Tensor, entropy_R: torch.Tensor) -> torch.Tensor:
        """This micro-batch's part of the update's loss."""
        algorithm, share = self._algorithm, self._share
        mask_R, engine_R = share.mask_R[batch.index_R], share.engine_logprob_R[batch.index_R]
        trainer_R = logprob_R.detach() if self._old_R is None else self._old_R[batch.index_R]
        tokens = Tokens(
            # No gradient may enter a masked token's ratio, which may be infinite: 0 * inf.
            logprob_R=torch.where(mask_R, logprob_R, logprob_R.detach()),
            old_logprob_R=trainer_R,
            engine_logprob_R=engine_R,
            advantage_R=self._advantage_R[batch.index_R],
            mask_R=mask_R,
            sample_R=batch.sample_R,
            num_samples=batch.num_samples,
        )
        self._compare(tokens)
        if algorithm.old_logprobs == "engine":
            tokens = dataclasses.replace(tokens, old_logprob_R=engine_R)
        policy = self._parts.loss(tokens, algorithm)
        corrected = correct(tokens, algorithm.correction, self._parts.weigh)
        total_R = torch.where(corrected.weight_R == 0, 0.0, policy.loss_R * corrected.weight_R)
        total_R = total_R - algorithm.entropy_coef * entropy_R
        if self._reference_R is not None:
            kl_R = self._parts.kl(logprob_R, self._reference_R[batch.index_R])
            if algorithm.kl_unbiased:
                kl_R = kl.unbiased(kl_R, logprob_R, tokens.old_logprob_R)
            total_R = total_R + algorithm.kl_coef * kl_R
            self._add("kl", kl_R, mask_R)
        self._add("entropy", entropy_R, mask_R)
        self._add("clip_fraction", policy.clipped_R, mask_R)
        self._meter.raise_to("ratio_max", policy.ratio_R[mask_R])
        self._report(corrected, mask_R)
        return torch.where(mask_R, total_R, 0.0).mul(share.weight_R[batch.index_R]).sum()

    def _compare(self, tokens: Tokens) -> None:
        difference_R = (tokens.old_logprob_R - tokens.engine_logprob_R).abs()
        self._add("logprob_abs_diff_mean", difference_R, tokens.mask_R)
        self._meter.raise_to("logprob_abs_diff_max", difference_R[tokens.mask_R])
        for name, value in mismatch.measure(tokens).items():
            self._meter.add(name, value)

    def _report(self, corrected: Corrected, mask_R: torch.Tensor) -> None:
        self._add("correction_weight", corrected.weight_R, mask_R)
        self._add("correction_bounded", corrected.bounded_R, mask_R)
        self._add("rejected_fraction", corrected.rejected_R, mask_R)
        self._add("vetoed_fraction", corrected.vetoed_R, mask_R)
        self._add("off_policy_fraction", corrected.off_policy_R, mask_R)

    def _add(self, name: str, values_R: torch.Tensor, mask_R: torch.Tensor) -> None:
        self._meter.add(name, torch.where(mask_R, values_R, 0.0).sum())
