"""A process that saves in a loop is killed at random moments, again and again: `python -m tests.trainer.kill_saves FOLDER KILLS`.

Every next process first reads the newest checkpoint that counts. Children are forked, since importing Megatron takes seconds; this module
imports little at its top, since a save spawns a process that imports it again. The last line is JSON: what each of them found.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from slime_hpc.run_folder import RunFolder

SHAPE = (256, 256)


def main() -> None:
    import torch

    from slime_hpc.trainer import cpu

    torch.set_num_threads(1)
    cpu.install()
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    from slime_hpc.trainer import checkpoint

    # Each child would spawn one for its first save, which takes seconds.
    manager = multiprocessing.get_context("spawn").Manager()
    run, kills = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    chance = random.Random(5)
    found = []
    for _ in range(kills):
        filesystem_async._results_queue = manager.Queue()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(reader)
            _save_for_ever(run, writer, checkpoint)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            found.append(json.loads(pipe.readline() or '{"whole": false}'))
            # One save is done for certain; the next one is under way.
            pipe.readline()
            time.sleep(chance.uniform(0, 0.15))
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    marked = len(list(run.checkpoints.glob(f"step_*/{checkpoint.MARKER}")))
    print(json.dumps({"found": found, "folders": len(list(run.checkpoints.glob("step_*"))), "marked": marked}))


def _save_for_ever(run: RunFolder, writer: int, checkpoint: Any) -> None:
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    def state(value: float) -> dict[str, Any]:
        return {"x": ShardedTensor.from_rank_offsets("x", torch.full(SHAPE, value), replica_id=0)}

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    step = max(checkpoint.complete_steps(run), default=0)
    loaded = dist_checkpointing.load(state(-1.0), str(run.checkpoint(step)))["x"] if step else torch.zeros(SHAPE)
    whole = bool((loaded == step).all())
    os.write(writer, f"{json.dumps({'step': step, 'whole': whole})}\n".encode())
    while True:
        step += 1
        checkpoint.write(run.checkpoint(step), state(float(step)), {"step": step})
        os.write(writer, b"saved\n")
        checkpoint.prune(run, keep=2)


if __name__ == "__main__":
    main()
