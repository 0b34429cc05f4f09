"""Writes `trl_losses.json`: what TRL's GRPOTrainer makes of some answers. `python -m tests.algo.record_trl`, with TRL installed.

Its loss is called as it is, on a stand-in for the trainer that holds its options and hands out the log-probs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

RECORD = Path(__file__).with_name("trl_losses.json")
LENGTHS = [5, 1, 7, 3]
CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo-asymmetric": {"epsilon_low": 0.1, "epsilon_high": 0.3},
    "token-mean": {"loss_type": "dapo"},
    "constant": {"loss_type": "dr_grpo"},
    "dual-clip": {"delta": 1.25},
    "gspo": {"importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.4},
    "kl": {"beta": 0.1},
    "kl-unbiased": {"beta": 0.1, "use_bias_correction_kl": True},
    "off-policy": {"off_policy_mask_threshold": 0.1},
}


def inputs() -> dict[str, torch.Tensor]:
    """Padded arrays (4, 7), and a mask with a hole."""
    generator = torch.Generator().manual_seed(5)
    mask = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    mask[2, 3] = 0
    old = -3 * torch.rand(mask.shape, generator=generator, dtype=torch.float64)
    near = [0.8 * torch.randn(mask.shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    names = ("new", "engine", "reference")
    values = {name: old + noise for name, noise in zip(names, near, strict=True)}
    advantages = torch.tensor([1.5, -0.7, -1.1, 0.4], dtype=torch.float64)
    return {"mask": mask, "old": old, **values, "advantages": advantages}


def trl_loss(data: dict[str, torch.Tensor], options: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """TRL's loss, and its gradient by log-prob."""
    from trl import GRPOTrainer

    new, mask = data["new"].clone().requires_grad_(), data["mask"]
    arguments = SimpleNamespace(
        delta=options.get("delta"), use_bias_correction_kl=options.get("use_bias_correction_kl", False), steps_per_generation=1
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        args=arguments, model=SimpleNamespace(training=True), aux_loss_enabled=False, top_entropy_quantile=1.0, use_vllm=False,
        off_policy_mask_threshold=options.get("off_policy_mask_threshold"), beta=options.get("beta", 0.0),
        importance_sampling_level=options.get("importance_sampling_level", "token"), loss_type=options.get("loss_type", "grpo"),
        epsilon_low=options.get("epsilon_low", 0.2), epsilon_high=options.get("epsilon_high", 0.2), max_completion_length=8,
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False, _metrics={"train": defaultdict(list)},
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
    )  # fmt: skip
    ids = torch.zeros_like(mask, dtype=torch.long)
    batch = {
        "prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask, "advantages": data["advantages"],
        "old_per_token_logps": data["old"], "sampling_per_token_logps": data["engine"], "ref_per_token_logps": data["reference"],
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, batch)
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


def main() -> None:
    """Write the record."""
    import trl

    data = inputs()
    results = {}
    for name, options in CASES.items():
        loss, gradient = trl_loss(data, options)
        results[name] = {"loss": loss, "gradient": gradient[data["mask"] > 0].tolist()}
    RECORD.write_text(json.dumps({"trl": trl.__version__, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
