"""AdamW through Megatron's distributed optimizer, and the course of the learning rate."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from slime_hpc.config.schema import Optimizer
from slime_hpc.trainer.policy import Policy


def learning_rate(section: Optimizer, step: int, steps: int) -> float:
    """Of step 1 .. steps: linear warm-up, then constant, or linear down to `final_fraction` at the last step."""
    if step <= section.warmup_steps:
        return section.lr * step / section.warmup_steps
    if section.decay == "constant":
        return section.lr
    done = (step - section.warmup_steps) / max(1, steps - section.warmup_steps)
    return section.lr * (1.0 - (1.0 - section.final_fraction) * done)


class Optimization:
    """The optimizer of one policy."""

    def __init__(self, policy: Policy, section: Optimizer, *, steps: int) -> None:
        self._section = section
        self._steps = steps
        dtype = policy.config.params_dtype
        config = OptimizerConfig(
            optimizer="adam",
            lr=section.lr,
            weight_decay=section.weight_decay,
            adam_beta1=section.beta1,
            adam_beta2=section.beta2,
            adam_eps=section.eps,
            clip_grad=section.clip_grad,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=True,
        )
        self.megatron: Any = get_megatron_optimizer(config, [policy.module])

    def step(self, step: int) -> tuple[float, float]:
        """Apply the gradients at the learning rate of `step`; the gradient's norm before clipping, and the rate."""
        rate = learning_rate(self._section, step, self._steps)
        for group in self.megatron.param_groups:
            group["lr"] = rate
            # Megatron leaves it to a scheduler to spare norms and biases (wd_mult 0).
            group["weight_decay"] = self._section.weight_decay * group["wd_mult"]
        _, norm, _ = self.megatron.step()
        return float(norm), rate
