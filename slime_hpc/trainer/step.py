"""One RL step on one batch: log-probs, loss, optimizer updates, and the numbers that say how it went.

With one update a step the policy that generated is the one that trains, so its own forward pass gives the old log-probs; with more, a pass
before the first update does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from slime_hpc.algo.loss import KL_ESTIMATORS, LOSSES
from slime_hpc.config.schema import Experiment
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Loss, Policy
from slime_hpc.trainer.share import Share

_SUMS = ("loss", "trained", "logprob_abs_diff", "kl", "entropy", "clipped")
_MAXIMA = ("logprob_abs_diff_max", "ratio_max")


def train(
    step: int, share: Share, experiment: Experiment, policy: Policy, optimization: Optimization, reference: Policy | None, place: Place
) -> dict[str, float]:
    """Train on a rank's share of the batch of `step`; the values of its "train" event, on all ranks. Collective."""
    temperature = experiment.rollout.temperature
    meter = Meter(place, sums=_SUMS, maxima=_MAXIMA)
    batches = [batch for update in share.updates for batch in update]
    start = time.monotonic()
    old_R = _flat(policy, batches, share, temperature) if len(share.updates) > 1 else None
    reference_R = _flat(reference, batches, share, temperature) if reference else None
    if old_R is not None:
        _compare(meter, old_R, share.engine_logprob_R, share.mask_R)
    scored = time.monotonic()
    loss = _loss(experiment, share, meter, old_R, reference_R)
    norms, rate = [], 0.0
    for update in share.updates:
        meter.add("loss", policy.backward(update, loss, temperature=temperature))
        norm, rate = optimization.step(step)
        norms.append(norm)
    seconds = {"seconds_logprobs": scored - start, "seconds_train": time.monotonic() - scored}
    return {**_values(meter.join(), len(share.updates)), **seconds, "grad_norm": max(norms), "lr": rate, "tokens": share.num_tokens}


def _flat(policy: Policy, batches: Sequence[MicroBatch], share: Share, temperature: float) -> torch.Tensor:
    """Log-probs of this rank's response tokens in the order of the share's arrays; zeros on all pipeline stages but the last."""
    flat_R = torch.zeros_like(share.engine_logprob_R)
    for batch, logprob_R in zip(batches, policy.logprobs(batches, temperature=temperature), strict=False):
        flat_R[batch.index_R] = logprob_R
    return flat_R


def _loss(experiment: Experiment, share: Share, meter: Meter, old_R: torch.Tensor | None, reference_R: torch.Tensor | None) -> Loss:
    algorithm = experiment.algorithm
    policy_loss, estimate = LOSSES[algorithm.loss], KL_ESTIMATORS[algorithm.kl_estimator]

    def loss(batch: MicroBatch, logprob_R: torch.Tensor, entropy_R: torch.Tensor) -> torch.Tensor:
        index_R = batch.index_R
        mask_R, weight_R = share.mask_R[index_R], share.weight_R[index_R]
        if old_R is None:
            _compare(meter, logprob_R.detach(), share.engine_logprob_R[index_R], mask_R)
        before_R = logprob_R.detach() if old_R is None else old_R[index_R]
        result = policy_loss(logprob_R, before_R, share.advantage_R[index_R], clip_low=algorithm.clip_low, clip_high=algorithm.clip_high)
        total_R = result.loss_R - algorithm.entropy_coef * entropy_R
        if reference_R is not None:
            kl_R = estimate(logprob_R, reference_R[index_R])
            total_R = total_R + algorithm.kl_coef * kl_R
            meter.add("kl", (kl_R * mask_R).sum())
        meter.add("trained", mask_R.sum())
        meter.add("entropy", (entropy_R * mask_R).sum())
        meter.add("clipped", (result.clipped_R * mask_R).sum())
        meter.raise_to("ratio_max", (logprob_R.detach() - before_R)[mask_R].exp())
        # A masked token's value must not reach the sum at all: 0 * inf would.
        return torch.where(mask_R, total_R, 0.0).mul(weight_R).sum()

    return loss


def _compare(meter: Meter, trainer_R: torch.Tensor, engine_R: torch.Tensor, mask_R: torch.Tensor) -> None:
    difference_R = (trainer_R - engine_R).abs()[mask_R]
    meter.add("logprob_abs_diff", difference_R.sum())
    meter.raise_to("logprob_abs_diff_max", difference_R)


def _values(joined: dict[str, float], updates: int) -> dict[str, float]:
    trained = max(joined["trained"], 1.0)
    return {
        "loss": joined["loss"] / updates,
        "trained_tokens": joined["trained"],
        "logprob_abs_diff_mean": joined["logprob_abs_diff"] / trained,
        "logprob_abs_diff_max": joined["logprob_abs_diff_max"],
        "kl": joined["kl"] / trained,
        "entropy": joined["entropy"] / trained,
        "clip_fraction": joined["clipped"] / trained,
        "ratio_max": joined["ratio_max"],
    }
