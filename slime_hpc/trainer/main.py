"""The trainer's task: one rank of the SPMD job."""

from __future__ import annotations

import os

import torch

from slime_hpc.control.context import RoleContext
from slime_hpc.trainer import cpu


def main(context: RoleContext) -> None:
    """Train until the last step. Raises what made the run fail."""
    if context.topology.accelerator == "cpu":
        threads = context.experiment.trainer.threads or int(os.environ.get("OMP_NUM_THREADS", context.role.cpus_per_task))
        torch.set_num_threads(threads)
        cpu.install()
    else:
        # cuBLAS repeats its sums in one order only with a workspace of fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(context.experiment.deterministic, warn_only=True)
    # Megatron's modules read torch.cuda when they are imported.
    from slime_hpc.trainer import parallel
    from slime_hpc.trainer.loop import TrainingLoop

    store, place = parallel.join(context)
    try:
        TrainingLoop(context, store, place).run()
    finally:
        parallel.leave()
