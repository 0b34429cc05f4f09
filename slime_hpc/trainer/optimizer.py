"""AdamW through Megatron's distributed optimizer, and the course of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from slime_hpc.config.schema import Optimizer
from slime_hpc.errors import RunError
from slime_hpc.trainer.options import configure, of_optimizer
from slime_hpc.trainer.policy import Policy


def learning_rate(section: Optimizer, step: int, steps: int) -> float:
    """Of step 1 .. steps: linear warm-up, then constant, or linear down to `final_fraction` at the last step."""
    if step <= section.warmup_steps:
        return section.lr * step / section.warmup_steps
    if section.decay == "constant":
        return section.lr
    done = (step - section.warmup_steps) / max(1, steps - section.warmup_steps)
    return section.lr * (1.0 - (1.0 - section.final_fraction) * done)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of an update's gradients, alike on all ranks."""

    norm: float
    """Before clipping."""
    rate: float
    skipped: bool
    """The loss or the gradient was not finite: weights and moments are as before."""


class Optimization:
    """The optimizer of one policy."""

    def __init__(
        self, policy: Policy, section: Optimizer, *, steps: int, max_skipped: int, options: Mapping[str, Any] | None = None
    ) -> None:
        """`options`: trainer.megatron, of which the optimizer takes its own. Raises ConfigError for those that Megatron refuses."""
        self._section = section
        self._steps = steps
        self._max_skipped = max_skipped
        self._skipped = 0
        dtype = policy.config.params_dtype
        values = {
            "optimizer": "adam",
            "lr": section.lr,
            "weight_decay": section.weight_decay,
            "adam_beta1": section.beta1,
            "adam_beta2": section.beta2,
            "adam_eps": section.eps,
            "clip_grad": section.clip_grad,
            "bf16": dtype == torch.bfloat16,
            "params_dtype": dtype,
            "use_distributed_optimizer": True,
        }
        config = configure(OptimizerConfig, values, of_optimizer(options or {}))
        self.megatron: Any = get_megatron_optimizer(config, [policy.module])
        self.parts: list[Any] = getattr(self.megatron, "chained_optimizers", [self.megatron])

    def step(self, step: int, *, what: str, loss_finite: bool = True) -> Applied:
        """Apply the gradients at the learning rate of `step`, unless they or the loss (of all ranks) are not finite. Collective.

        Raises RunError, on all ranks, when more updates in a row were skipped than may be; `what` names this one.
        """
        rate = learning_rate(self._section, step, self._steps)
        for group in self.megatron.param_groups:
            group["lr"] = rate
            # Megatron leaves it to a scheduler to spare norms and biases (wd_mult 0).
            group["weight_decay"] = self._section.weight_decay * group["wd_mult"]
        self.megatron.prepare_grads()
        norm = float(self.megatron.get_grad_norm())
        if loss_finite and math.isfinite(norm):
            self._skipped = 0
            self._clip(norm)
            self.megatron.step_with_ready_grads()
            return Applied(norm, rate, skipped=False)
        self._skipped += 1
        if self._skipped > self._max_skipped:
            raise RunError(
                f"The {'gradient' if loss_finite else 'loss'} of {what} is not finite; {self._skipped} updates in a row had to be skipped.",
                where="trainer.max_skipped_updates",
                fix="look at the batch; lower trainer.optimizer.lr, set trainer.optimizer.clip_grad, or bound the ratios by a correction",
            )
        return Applied(norm, rate, skipped=True)

    def _clip(self, norm: float) -> None:
        for part in self.parts:
            parameters = part.get_parameters()
            if parameters and self._section.clip_grad > 0:
                clip_grad_by_total_norm_fp32(parameters, self._section.clip_grad, norm)
