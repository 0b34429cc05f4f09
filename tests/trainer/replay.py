"""Trains on one batch with the engine's routes and without: `python -m tests.trainer.replay MODEL BATCH FIGURES`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from slime_hpc.trainer import cpu


def main() -> None:
    """Write the values of both "train" events."""
    model, batch, figures = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    cpu.install()
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    from megatron.core import parallel_state

    from tests.trainer import tiny
    from tests.trainer.run_case import Built

    values = {}
    for name, replay in (("replayed", True), ("free", False)):
        table = {"route_replay": replay, "route_replay_compare": replay, "kl_coef": 0.1}
        built = Built(tiny.experiment(model, algorithm=table))
        values[name] = built.train(1, batch, built.models())
        parallel_state.destroy_model_parallel()
    figures.write_text(json.dumps(values))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
