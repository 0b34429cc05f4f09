"""Before the updates of a step: log-probs of all models on its tokens, and from them each token's advantage.

With one update a step the policy that generated is the one that trains, so its own forward pass gives the old log-probs; with more, or
where an advantage is made of them, a pass before the first update does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime_hpc.algo.advantage import credit, token_rewards, whiten
from slime_hpc.algo.distill import reverse_kl
from slime_hpc.algo.gae import gae
from slime_hpc.algo.registry import Parts
from slime_hpc.config.schema import Experiment
from slime_hpc.trainer.kept import Kept
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.policy import Policy
from slime_hpc.trainer.roster import Roster
from slime_hpc.trainer.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of each response token of the share, (R,); right on the last pipeline stage, and used there alone."""

    advantage_R: torch.Tensor
    old_R: torch.Tensor | None
    """Log-probs before the step; None: the loss takes those of its own forward pass."""
    reference_R: torch.Tensor | None
    """Log-probs of the reference; None without one."""
    value_R: torch.Tensor | None
    return_R: torch.Tensor | None


def estimate(share: Share, models: Roster, experiment: Experiment, parts: Parts, meter: Meter) -> Estimate:
    """All passes without gradients, and the advantages. Collective."""
    algorithm = experiment.algorithm
    old_R, reference_R, teacher_R, value_R = _passes(share, models, experiment, meter)
    penalty_R = None
    if algorithm.kl_in == "reward" and old_R is not None and reference_R is not None:
        kl_R = parts.kl(old_R, reference_R)
        meter.add("kl", kl_R[share.mask_R].sum())
        penalty_R = algorithm.kl_coef * kl_R
    advantage_R, return_R = _credit(share, experiment, parts, penalty_R, value_R)
    if old_R is not None and teacher_R is not None and experiment.teacher is not None:
        gap_R = reverse_kl(old_R, teacher_R)
        meter.add("teacher_kl", gap_R[share.mask_R].sum())
        advantage_R = advantage_R - experiment.teacher.coef * torch.where(share.mask_R, gap_R, 0.0)
    if algorithm.whiten or parts.advantage.whiten:
        advantage_R = whiten(advantage_R, share.mask_R, _sum_ranks)
    return Estimate(advantage_R=advantage_R, old_R=old_R, reference_R=reference_R, value_R=value_R, return_R=return_R)


def _passes(share: Share, models: Roster, experiment: Experiment, meter: Meter) -> tuple[torch.Tensor | None, ...]:
    """Old log-probs, those of reference and teacher, and values; None for what nothing asks for."""
    algorithm, temperature = experiment.algorithm, experiment.rollout.temperature
    routed = [batch for update in share.updates for batch in update]
    free = [batch.unrouted() for batch in routed]

    def logprobs(policy: Policy, batches: Sequence[MicroBatch]) -> torch.Tensor:
        return flat(lambda given: policy.logprobs(given, temperature=temperature), batches, share)

    old_R = None
    if models.kept is not None:
        old_R = _of_generators(models.kept, share, lambda: logprobs(models.policy, routed), meter)
    elif len(share.updates) > 1 or models.teacher or (models.reference and algorithm.kl_in == "reward"):
        old_R = logprobs(models.policy, routed)
    if algorithm.route_replay_compare:
        difference_R = (logprobs(models.policy, free) - share.engine_logprob_R).abs()
        meter.add("logprob_abs_diff_mean_unrouted", difference_R[share.mask_R].sum())
    reference_R = logprobs(models.reference, free) if models.reference else None
    teacher_R = logprobs(models.teacher, free) if models.teacher else None
    return old_R, reference_R, teacher_R, flat(models.critic.values, routed, share) if models.critic else None


def _of_generators(kept: Kept, share: Share, logprobs: Callable[[], torch.Tensor], meter: Meter) -> torch.Tensor:
    """Log-probs of each answer's tokens by the weights that drew it, or the nearest kept ones: a pass for each of the batch's versions."""
    old_R = torch.zeros_like(share.engine_logprob_R)
    for version in share.versions:
        nearest = kept.nearest(version)
        with kept.holding(nearest):
            values_R = logprobs()
        own_R = share.version_R == version
        old_R = torch.where(own_R, values_R, old_R)
        if nearest != version:
            meter.add("old_version_missing", (own_R & share.mask_R).sum())
    return old_R


def flat(forward: Callable[[Sequence[MicroBatch]], list[torch.Tensor]], batches: Sequence[MicroBatch], share: Share) -> torch.Tensor:
    """One number for each of this rank's response tokens, in the order of the share's arrays; zeros on all stages but the last."""
    flat_R = torch.zeros_like(share.engine_logprob_R)
    for batch, values_R in zip(batches, forward(batches), strict=False):
        flat_R[batch.index_R] = values_R
    return flat_R


def _credit(
    share: Share, experiment: Experiment, parts: Parts, penalty_R: torch.Tensor | None, value_R: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    algorithm = experiment.algorithm
    if value_R is not None:
        reward_R = token_rewards(share.score_R, penalty_R, share.mask_R, share.sample_R)
        return gae(reward_R, value_R, share.mask_R, share.sample_R, gamma=algorithm.gamma, lam=algorithm.gae_lambda)
    discounted = parts.advantage.discounted
    return credit(share.score_R, penalty_R, share.mask_R, share.sample_R, discounted=discounted, gamma=algorithm.gamma), None


def _sum_ranks(values: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group())
    return values
