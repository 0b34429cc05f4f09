"""One RL step on one batch: estimates, the critic's updates, the policy's updates, and the numbers that say how it went."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from slime_hpc.algo.mismatch import BY_SAMPLE
from slime_hpc.algo.registry import Parts
from slime_hpc.config.schema import Experiment
from slime_hpc.trainer.estimate import estimate
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.objective import BY_TOKEN, MAXIMA, SUMS, Objective
from slime_hpc.trainer.optimizer import Applied
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.roster import Roster
from slime_hpc.trainer.share import Share

_LOG = logging.getLogger(__name__)


def train(step: int, share: Share, experiment: Experiment, parts: Parts, models: Roster, place: Place) -> dict[str, float]:
    """Train on a rank's share of the batch of `step`; the values of its "train" event, on all ranks. Collective.

    Raises RunError, on all ranks, when too many updates in a row were not finite.
    """
    meter = Meter(place, sums=SUMS, maxima=MAXIMA)
    start = time.monotonic()
    given = estimate(share, models, experiment, parts, meter)
    estimated = time.monotonic()
    critic: dict[str, float] = {}
    if models.critic is not None and given.value_R is not None and given.return_R is not None:
        critic = models.critic.train(step, share, given.value_R, given.return_R)
        critic["seconds_critic"] = time.monotonic() - estimated
    updates = []
    if experiment.critic is None or step > experiment.critic.warmup_steps:
        updates = _update(step, share, models, Objective(experiment.algorithm, parts, share, meter, given), experiment, place, meter)
    meter.add("trained", share.mask_R.sum())
    meter.add("samples", share.sample_R[share.mask_R].unique().numel())
    seconds = {"seconds_logprobs": estimated - start, "seconds_train": time.monotonic() - estimated}
    return {**_values(meter.join(), updates), **critic, **share.counts, **seconds}


def _update(
    step: int, share: Share, models: Roster, objective: Objective, experiment: Experiment, place: Place, meter: Meter
) -> list[Applied]:
    """One update of the policy for each of the share's."""
    updates = []
    for number, update in enumerate(share.updates, 1):
        loss = models.policy.backward(update, objective, temperature=experiment.rollout.temperature)
        what = f"update {number} of {len(share.updates)} of step {step} ({share.path})"
        updates.append(models.optimization.step(step, what=what, loss_finite=place.finite_everywhere(loss)))
        if updates[-1].skipped:
            _LOG.warning("%s is skipped: its loss or its gradient is not finite.", what)
        else:
            meter.add("loss", loss)
    return updates


def _values(joined: dict[str, float], updates: Sequence[Applied]) -> dict[str, float]:
    """Without updates, while the critic warms up, there is nothing to say of the policy."""
    if not updates:
        return {"trained_tokens": joined["trained"]}
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
