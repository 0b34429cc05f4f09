"""The critic of PPO: a model like the policy's with one output a token, its optimizer, and its training on a step's returns.

Lives on the policy's own ranks, at the same parallel sizes; the two take turns. Knows nothing of how returns are estimated.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from slime_hpc.algo.value_loss import value_loss
from slime_hpc.config import schema
from slime_hpc.config.schema import Experiment
from slime_hpc.trainer import context
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.model import Blueprint, PolicyModel, build, transformer_config
from slime_hpc.trainer.optimizer import Applied, Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy
from slime_hpc.trainer.share import Share

_LOG = logging.getLogger(__name__)
SUMS = ("value_loss", "value", "value_clipped", "return", "return_squared", "error", "error_squared", "valued")


class ValueModel(PolicyModel):
    """One pipeline stage of the critic; on the last one `output_layer` has a single row, whole on every tensor-parallel rank."""

    def _postprocess(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """Last stage: (1, R), fp32: the value of the state that each response token was drawn in."""
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            # Every rank computes all values, so each takes its own part of one and the same gradient.
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=False, group=self.pg_collection.tp
            )
        batch, cp = self._batch, self.pg_collection.cp
        own_1Q: torch.Tensor = self.output_layer(hidden_states.squeeze(1)[batch.rows_Q]).float().t()
        return own_1Q if cp.size() == 1 else context.complete(own_1Q, batch.own_Q, batch.index_R.numel(), cp)


def _model(blueprint: Blueprint, config: Any, place: Place, like: PolicyModel) -> ValueModel:
    """The weights of `like`, and an output of 0: an untrained critic makes every advantage the plain return."""
    untied = dataclasses.replace(blueprint, sizes=dataclasses.replace(blueprint.sizes, tied=False))
    model = build(untied, config, place.device, kind=ValueModel)
    if place.last_stage:
        head = torch.nn.Linear(config.hidden_size, 1, bias=False, dtype=config.params_dtype, device=place.device)
        torch.nn.init.zeros_(head.weight)
        model.output_layer = head
    theirs = {**dict(like.named_parameters()), **dict(like.named_buffers())}
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not name.startswith("output_layer."):
                tensor.copy_(theirs[name])
    return model


class Critic:
    """Values, and updates of what gives them; every method is called on all ranks together."""

    def __init__(self, experiment: Experiment, section: schema.Critic, blueprint: Blueprint, place: Place, *, like: PolicyModel) -> None:
        """Begins as `like`, the policy's stage on this rank."""
        config = transformer_config(blueprint, experiment)
        self.policy = Policy(_model(blueprint, config, place, like), config, place)
        trainer = experiment.trainer
        self.optimization = Optimization(
            self.policy, section.optimizer, steps=experiment.steps, max_skipped=trainer.max_skipped_updates, options=trainer.megatron
        )
        self._section = section
        self._place = place

    def values(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """value_R of each micro-batch; on all stages but the last an empty list."""
        return self.policy.first_rows([batch.unrouted() for batch in batches], temperature=1.0)

    def train(self, step: int, share: Share, value_R: torch.Tensor, return_R: torch.Tensor) -> dict[str, float]:
        """One update for each of the share's. `value_R`, (R,): before the step. Returns its numbers, on all ranks.

        Raises RunError, on all ranks, when too many updates in a row were not finite.
        """
        meter = Meter(self._place, sums=SUMS, maxima=())

        def loss(batch: MicroBatch, now_R: torch.Tensor) -> torch.Tensor:
            mask_R, target_R = share.mask_R[batch.index_R], return_R[batch.index_R]
            loss_R, clipped_R = value_loss(now_R, value_R[batch.index_R], target_R, clip=self._section.value_clip)
            error_R = target_R - now_R.detach()
            metered = {
                "value": now_R, "value_clipped": clipped_R, "return": target_R, "return_squared": target_R**2, "error": error_R,
                "error_squared": error_R**2, "valued": torch.ones_like(error_R),
            }  # fmt: skip
            for name, values_R in metered.items():
                meter.add(name, values_R[mask_R].sum())
            return torch.where(mask_R, loss_R, 0.0).mul(share.weight_R[batch.index_R]).sum()

        updates = []
        for number, update in enumerate(share.updates, 1):
            part = self.policy.backward([batch.unrouted() for batch in update], loss, temperature=1.0)
            what = f"critic's update {number} of {len(share.updates)} of step {step} ({share.path})"
            updates.append(self.optimization.step(step, what=what, loss_finite=self._place.finite_everywhere(part)))
            if updates[-1].skipped:
                _LOG.warning("The %s is skipped: its loss or its gradient is not finite.", what)
            else:
                meter.add("value_loss", part)
        return _values(meter.join(), updates)


def _values(joined: dict[str, float], updates: Sequence[Applied]) -> dict[str, float]:
    applied = [update for update in updates if not update.skipped]
    count = max(joined["valued"], 1.0)
    mean = {name: joined[name] / count for name in SUMS}
    spread = mean["return_squared"] - mean["return"] ** 2
    unexplained = mean["error_squared"] - mean["error"] ** 2
    return {
        "value_loss": joined["value_loss"] / len(applied) if applied else math.nan,
        "value_mean": mean["value"],
        "value_clip_fraction": mean["value_clipped"],
        "return_mean": mean["return"],
        "value_explained_variance": 1 - unexplained / spread if spread > 0 else math.nan,
        "critic_grad_norm": max((update.norm for update in applied), default=math.nan),
        "critic_skipped_updates": len(updates) - len(applied),
        "critic_lr": updates[-1].rate,
    }
