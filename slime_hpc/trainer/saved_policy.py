"""The policy of a saved step, whole in this one process, for whoever wants to look at it outside a job.

Needs the memory of the whole model; a checkpoint of any parallel sizes will do. Knows nothing of engines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from slime_hpc.config.schema import Experiment
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.buckets import NamedTensor, held
from slime_hpc.sync.verify import Score
from slime_hpc.trainer import cpu


class SavedPolicy:
    """A policy that is not trained."""

    def __init__(self, run: RunFolder, experiment: Experiment, step: int) -> None:
        # Megatron's modules read torch.cuda when they are imported.
        from slime_hpc.trainer import checkpoint, parallel, weights
        from slime_hpc.trainer.model import Blueprint, build, transformer_config
        from slime_hpc.trainer.policy import Policy

        blueprint, device = Blueprint.read(experiment), torch.device("cpu")
        config = transformer_config(blueprint, experiment)
        policy = Policy(build(blueprint, config, device), config, parallel.place(device), trainable=False)
        checkpoint.load(run, step, policy, None)
        self.sizes = blueprint.sizes
        self.score: Score = policy.score
        self._export = lambda: weights.export(policy.model, blueprint.sizes)

    def tensors(self) -> Iterator[NamedTensor]:
        """All weights, with Hugging Face names."""
        return held(self._export())


@contextlib.contextmanager
def open_policy(run: RunFolder, experiment: Experiment, step: int) -> Iterator[SavedPolicy]:
    """Load the checkpoint of `step` on CPUs. Raises RunError when it cannot be read."""
    cpu.install()
    from slime_hpc.trainer import parallel

    whole = {"tensor_parallel": 1, "pipeline_parallel": 1, "sequence_parallel": False}
    alone = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=whole)})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        parallel.split(alone.trainer, alone.seed)
        yield SavedPolicy(run, alone, step)
    finally:
        parallel.leave()
