"""One RL step on one batch: log-probs, advantages, optimizer updates, and the numbers that say how it went.

With one update a step the policy that generated is the one that trains, so its own forward pass gives the old log-probs; with more, or with
the KL penalty in the reward, a pass before the first update does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime_hpc.algo.advantage import credit, whiten
from slime_hpc.algo.mismatch import BY_SAMPLE
from slime_hpc.algo.registry import Parts
from slime_hpc.config.schema import Algorithm, Experiment
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.objective import BY_TOKEN, MAXIMA, SUMS, Objective
from slime_hpc.trainer.optimizer import Applied, Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy
from slime_hpc.trainer.share import Share

_LOG = logging.getLogger(__name__)


def train(
    step: int,
    share: Share,
    experiment: Experiment,
    parts: Parts,
    policy: Policy,
    optimization: Optimization,
    reference: Policy | None,
    place: Place,
) -> dict[str, float]:
    """Train on a rank's share of the batch of `step`; the values of its "train" event, on all ranks. Collective.

    Raises RunError, on all ranks, when too many updates in a row were not finite.
    """
    algorithm, temperature = experiment.algorithm, experiment.rollout.temperature
    meter = Meter(place, sums=SUMS, maxima=MAXIMA)
    batches = [batch for update in share.updates for batch in update]
    in_reward = reference is not None and algorithm.kl_in == "reward"
    start = time.monotonic()
    old_R = _flat(policy, batches, share, temperature) if len(share.updates) > 1 or in_reward else None
    reference_R = _flat(reference, batches, share, temperature) if reference else None
    kl_R = parts.kl(old_R, reference_R) if in_reward and old_R is not None and reference_R is not None else None
    if kl_R is not None:
        meter.add("kl", kl_R[share.mask_R].sum())
    advantage_R = _advantages(share, algorithm, parts, kl_R)
    scored = time.monotonic()
    objective = Objective(
        algorithm, parts, share, meter, advantage_R=advantage_R, old_R=old_R, reference_R=None if in_reward else reference_R
    )
    updates = []
    for number, update in enumerate(share.updates, 1):
        loss = policy.backward(update, objective, temperature=temperature)
        what = f"update {number} of {len(share.updates)} of step {step} ({share.path})"
        updates.append(optimization.step(step, what=what, loss_finite=_finite_everywhere(loss, place)))
        if updates[-1].skipped:
            _LOG.warning("%s is skipped: its loss or its gradient is not finite.", what)
        else:
            meter.add("loss", loss)
    seconds = {"seconds_logprobs": scored - start, "seconds_train": time.monotonic() - scored}
    return {**_values(meter.join(), updates), **share.counts, **seconds}


def _flat(policy: Policy, batches: Sequence[MicroBatch], share: Share, temperature: float) -> torch.Tensor:
    """Log-probs of this rank's response tokens in the order of the share's arrays; zeros on all pipeline stages but the last."""
    flat_R = torch.zeros_like(share.engine_logprob_R)
    for batch, logprob_R in zip(batches, policy.logprobs(batches, temperature=temperature), strict=False):
        flat_R[batch.index_R] = logprob_R
    return flat_R


def _advantages(share: Share, algorithm: Algorithm, parts: Parts, kl_R: torch.Tensor | None) -> torch.Tensor:
    """Of each token of the share. Right on the last pipeline stage alone where they hold a KL penalty, and used there alone."""
    penalty_R = None if kl_R is None else algorithm.kl_coef * kl_R
    discounted = parts.advantage.discounted
    advantage_R = credit(share.score_R, penalty_R, share.mask_R, share.sample_R, discounted=discounted, gamma=algorithm.gamma)
    if not (algorithm.whiten or parts.advantage.whiten):
        return advantage_R

    def sum_ranks(values: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(values, group=parallel_state.get_data_parallel_group())
        return values

    return whiten(advantage_R, share.mask_R, sum_ranks)


def _finite_everywhere(loss: float, place: Place) -> bool:
    bad = torch.tensor(0.0 if math.isfinite(loss) else 1.0, device=place.device)
    if place.world > 1:
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return not bad.item()


def _values(joined: dict[str, float], updates: Sequence[Applied]) -> dict[str, float]:
    applied = [update for update in updates if not update.skipped]
    trained, samples = max(joined["trained"], 1.0), max(joined["samples"], 1.0)
    return {
        **{name: joined[name] / trained for name in BY_TOKEN},
        **{name: joined[name] / samples for name in BY_SAMPLE},
        **{name: joined[name] for name in MAXIMA},
        "loss": joined["loss"] / len(applied) if applied else math.nan,
        "trained_tokens": joined["trained"],
        "grad_norm": max((update.norm for update in applied), default=math.nan),
        "skipped_updates": len(updates) - len(applied),
        "lr": updates[-1].rate,
    }
