"""Between checkpoints and Hugging Face folders, in one process: a run's weights to publish, or a folder as a checkpoint to start from.

A Hugging Face folder takes its configuration and tokenizer from the model folder; weights go through memory one file at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from slime_hpc.config.schema import Experiment, Trainer
from slime_hpc.errors import DataError, RunFolderError
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.buckets import held, stream
from slime_hpc.sync.checkpoint_folder import CheckpointFolder
from slime_hpc.trainer import cpu

if TYPE_CHECKING:
    from slime_hpc.trainer.model import Blueprint
    from slime_hpc.trainer.policy import Policy

Progress = Callable[[int, int], None]
"""(weights done, weights in all)."""


def to_hugging_face(checkpoint: Path, experiment: Experiment, out: Path, *, progress: Progress, file_mib: int) -> None:
    """Write the weights of a checkpoint folder as a Hugging Face folder, in files of about `file_mib`.

    Raises DataError when `out` is there already, RunError for a checkpoint that cannot be read or is of another model.
    """
    if out.exists():
        raise DataError(f"{out} is there already.", where=str(out), fix="give a name that is free")
    with _alone(experiment) as (policy, blueprint):
        from slime_hpc.trainer import checkpoint as checkpoints
        from slime_hpc.trainer import weights
        from slime_hpc.trainer.models import registry

        checkpoints.read(checkpoint, policy, None)
        total = sum(len(weight.hf) for weight in registry.weights(blueprint.sizes))

        def counted() -> Iterator[tuple[str, torch.Tensor | None]]:
            for number, named in enumerate(weights.export(policy.model, blueprint.sizes), 1):
                yield named
                progress(number, total)

        folder = CheckpointFolder(out)
        folder.open()
        for shard in stream(held(counted()), file_mib * 2**20):
            folder.write(shard)
        folder.complete(Path(experiment.model.path))
        folder.publish()


def from_hugging_face(experiment: Experiment, out: Path) -> None:
    """Write the weights of the experiment's model folder as a checkpoint folder without optimizer state. Raises DataError."""
    if out.exists():
        raise DataError(f"{out} is there already.", where=str(out), fix="give a name that is free")
    with _alone(experiment) as (policy, blueprint):
        from slime_hpc.trainer import checkpoint as checkpoints
        from slime_hpc.trainer import weights

        weights.load(policy.model, blueprint.sizes, weights.source_of(experiment, blueprint))
        checkpoints.write_policy(out, 0, policy)


def chosen_checkpoint(run: RunFolder, step: int | None) -> Path:
    """The folder of a run's complete checkpoint; None: of the newest. Raises RunFolderError when there is none."""
    from slime_hpc.trainer.checkpoint import complete_steps

    steps = complete_steps(run)
    if not steps or (step is not None and step not in steps):
        raise RunFolderError(
            f"{run.path} has no complete checkpoint" + ("." if step is None else f" of step {step}."),
            where=str(run.checkpoints),
            fix=f"there are those of steps {', '.join(map(str, steps))}" if steps else "wait for the first, see checkpoint.interval",
        )
    return run.checkpoint(steps[-1] if step is None else step)


@contextlib.contextmanager
def _alone(experiment: Experiment) -> Iterator[tuple[Policy, Blueprint]]:
    """The whole policy in a world of one rank, on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cpu.install()
    from slime_hpc.trainer import parallel
    from slime_hpc.trainer.model import Blueprint, build, transformer_config
    from slime_hpc.trainer.policy import Policy

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel.split(Trainer(), experiment.seed)
        whole = experiment.model_copy(update={"trainer": Trainer(megatron=experiment.trainer.megatron)})
        blueprint, place = Blueprint.read(whole), parallel.place(torch.device("cpu"))
        config = transformer_config(blueprint, whole)
        yield Policy(build(blueprint, config, place.device), config, place, trainable=False), blueprint
    finally:
        parallel.leave()
