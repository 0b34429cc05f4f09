"""Checks of the trainer on several ranks: `python -m tests.trainer.checks FOLDER RANK WORLD [CASE ...]`.

It runs all that a world of that size can hold, or the named cases alone. Many in one launch, since importing Megatron
takes seconds. Each leaves its figures in FOLDER/world-<n>.json; the tests judge them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slime_hpc.trainer import cpu


@dataclass(frozen=True)
class Case:
    """One model at one parallel layout."""

    name: str
    kind: str
    world: int
    tied: bool = False
    trainer: dict[str, Any] = field(default_factory=dict)
    steps: int = 3


TOKEN_MEAN = {"kl_coef": 0.1, "loss_mean": "token", "entropy_coef": 0.01, "clip_low": 0.05, "clip_high": 0.1}
GSPO = {"loss": "gspo", "clip_low": 0.01, "clip_high": 0.02, "correction": {"kind": "tis"}}
CISPO = {"loss": "cispo", "clip_high": 0.1, "loss_mean": "constant", "loss_length": 24, "kl_coef": 0.1, "kl_unbiased": True}
RETURNS = {"advantage": "reinforce_plus_plus", "gamma": 0.9, "kl_coef": 0.1, "kl_in": "reward"}
REJECTION = {"advantage": "rloo", "whiten": True, "correction": {"reject": "geometric", "reject_low": 0.4, "reject_high": 1.5}}
TP2_SP = {"tensor_parallel": 2, "sequence_parallel": True}
DR_GRPO = {"advantage": "dr_grpo", "loss_mean": "constant", "loss_length": 24, "clip_low": 0.05, "clip_high": 0.1}
PPO = {"advantage": "gae", "gamma": 0.95, "gae_lambda": 0.9, "clip_low": 0.05, "clip_high": 0.1}
CRITIC = {"optimizer": {"lr": 1e-2}, "value_clip": 0.1}
SFT = {"advantage": "none", "loss": "sft", "loss_mean": "rollout"}
CASES = [
    Case("llama", "llama", 1),
    Case("qwen2-tied", "qwen2", 1, tied=True),
    Case("qwen3", "qwen3", 1),
    Case("recompute", "qwen3", 1, trainer={"recompute": True}),
    Case("two-updates-kl-token-mean", "qwen3", 1, trainer={"updates_per_step": 2, "algorithm": TOKEN_MEAN}),
    Case("gspo-tis", "qwen3", 1, trainer={"updates_per_step": 2, "algorithm": GSPO}),
    Case("ppo", "qwen3", 1, trainer={"updates_per_step": 2, "algorithm": PPO, "critic": CRITIC}),
    Case("ppo-kl-warmup", "llama", 1, trainer={"algorithm": PPO | RETURNS | {"advantage": "gae"}, "critic": CRITIC | {"warmup_steps": 1}}),
    Case("distillation", "qwen3", 1, trainer={"algorithm": {"advantage": "none"}, "teacher": {"coef": 0.5}}),
    Case("dr-grpo", "qwen3", 1, trainer={"updates_per_step": 2, "algorithm": DR_GRPO}),
    Case("sft", "qwen3", 1, trainer={"algorithm": SFT}),
    Case("tp2", "qwen3", 2, trainer={"tensor_parallel": 2}),
    Case("tp2-qwen2", "qwen2", 2, trainer={"tensor_parallel": 2}),
    Case("tp2-tied-sp", "qwen3", 2, tied=True, trainer={"tensor_parallel": 2, "sequence_parallel": True}),
    Case("tp2-sp-recompute", "llama", 2, trainer={"tensor_parallel": 2, "sequence_parallel": True, "recompute": True}),
    Case("dp2", "qwen3", 2, tied=True),
    Case("dp2-two-updates", "qwen3", 2, trainer={"updates_per_step": 2}),
    Case("pp2", "qwen3", 2, trainer={"pipeline_parallel": 2}),
    Case("pp2-tied-kl", "qwen2", 2, tied=True, trainer={"pipeline_parallel": 2, "updates_per_step": 2, "algorithm": {"kl_coef": 0.1}}),
    Case("dp2-returns-kl-in-reward", "qwen3", 2, trainer={"updates_per_step": 2, "algorithm": RETURNS}),
    Case("dp2-rloo-whiten-rejection", "qwen3", 2, trainer={"updates_per_step": 2, "algorithm": REJECTION}),
    Case("pp2-cispo-constant", "qwen3", 2, trainer={"pipeline_parallel": 2, "updates_per_step": 2, "algorithm": CISPO}),
    Case("dp2-ppo-whiten", "qwen3", 2, trainer={"updates_per_step": 2, "algorithm": PPO | {"whiten": True}, "critic": CRITIC}),
    Case("tp2-sp-ppo", "qwen3", 2, tied=True, trainer=TP2_SP | {"algorithm": PPO, "critic": CRITIC}),
    Case("cp2-ppo", "qwen3", 2, trainer={"context_parallel": 2, "algorithm": PPO, "critic": CRITIC}),
    Case("pp2-tied-ppo", "qwen2", 2, tied=True, trainer={"pipeline_parallel": 2, "algorithm": PPO, "critic": CRITIC}),
    Case("dp2-distillation-rloo", "qwen3", 2, trainer={"updates_per_step": 2, "algorithm": REJECTION, "teacher": {"coef": 0.1}}),
    Case("tp2-pp2-ppo", "qwen3", 4, trainer={"tensor_parallel": 2, "pipeline_parallel": 2, "algorithm": PPO, "critic": CRITIC}),
    Case("pp2-dp2-returns", "qwen3", 4, trainer={"pipeline_parallel": 2, "algorithm": RETURNS}),
    Case("tp2-dp2-gspo", "qwen3", 4, trainer={"tensor_parallel": 2, "updates_per_step": 2, "algorithm": GSPO}),
    Case("tp2-dp2", "qwen3", 4, trainer={"tensor_parallel": 2}),
    Case("tp2-pp2-sp", "qwen3", 4, tied=True, trainer={"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True}),
    Case("pp2-dp2", "llama", 4, trainer={"pipeline_parallel": 2}),
    Case("cp2-gspo-tis", "qwen3", 2, trainer={"context_parallel": 2, "updates_per_step": 2, "algorithm": GSPO}),
]
TP2 = {"tensor_parallel": 2, "sequence_parallel": True}
PP2 = {"pipeline_parallel": 2}
CP2 = {"context_parallel": 2}
EP2 = {"expert_parallel": 2}
DENSE: list[tuple[str, int, dict[str, Any]]] = [
    ("", 1, {}), ("tp2", 2, {"tensor_parallel": 2}), ("tp2-sp", 2, TP2), ("pp2", 2, PP2), ("cp2", 2, CP2), ("dp2", 2, {}),
    ("tp2-pp2", 4, {"tensor_parallel": 2, **PP2}),
]  # fmt: skip
SPARSE: list[tuple[str, int, dict[str, Any]]] = [
    ("", 1, {}), ("tp2-sp", 2, TP2), ("pp2", 2, PP2), ("cp2", 2, CP2), ("ep2", 2, EP2), ("dp2", 2, {}), ("tp2-sp-pp2", 4, {**TP2, **PP2}),
]  # fmt: skip
for family, layouts in {"glm4": DENSE, "qwen3-moe": SPARSE, "glm4-moe": SPARSE, "deepseek-v3": SPARSE}.items():
    CASES += [Case(f"{family}-{layout}".rstrip("-"), family, world, trainer=trainer, steps=2) for layout, world, trainer in layouts]


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    cpu.install()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world}", rank=rank, world_size=world)
    from tests.trainer import run_case

    chosen = sys.argv[4:]
    results = {case.name: run_case.run(case, folder) for case in CASES if case.world == world and (not chosen or case.name in chosen)}
    if not chosen:
        results |= others(world, folder, run_case)
    if rank == 0:
        (folder / f"world-{world}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def others(world: int, folder: Path, run_case: Any) -> dict[str, Any]:
    """What is not a case."""
    results = {"resharded": run_case.reshard(folder), "not_finite": run_case.not_finite(folder)}
    if world < 4:
        results |= {"routes": run_case.routes_replayed(folder), "asynchronous": run_case.asynchronous(folder)}
        results |= {"kept": run_case.kept(folder), "odd": run_case.odd(folder)}
    if world == 2:
        results["resharded_experts"] = run_case.reshard(folder, "deepseek-v3")
    if world == 1:
        results |= {"bf16": run_case.bf16(folder), "logits": run_case.gradient_of_logits(), "foreign": run_case.foreign(folder)}
        results["frozen"] = run_case.frozen(folder)
    return results


if __name__ == "__main__":
    main()
