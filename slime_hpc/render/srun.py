"""The srun command of one role. Pure.

The number of steps depends on the roles alone. Every step may share its nodes (--overlap), since sidecars sit beside trainer and engines;
a step's GPUs, cores and memory are named, so that none takes all by default (srun(1)).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slime_hpc.config.schema import Experiment
from slime_hpc.plan.job import RolePlan
from slime_hpc.render.container import container_flags
from slime_hpc.render.quote import file_pattern
from slime_hpc.topology.schema import Topology


def srun_command(
    role: RolePlan, experiment: Experiment, topology: Topology, *, nodelist: str, folder: Path, run: Path, command: Sequence[str]
) -> list[str]:
    """`nodelist`: host list of the role's nodes; `folder`: submitit's folder of the role; `command`: what each task runs."""
    options, prefix = container_flags(experiment, topology, run)
    return [
        "srun",
        f"--job-name={role.name}",
        f"--nodes={len(role.nodes)}",
        f"--nodelist={nodelist}",
        f"--ntasks={role.num_tasks}",
        f"--ntasks-per-node={role.tasks_per_node}",
        f"--cpus-per-task={role.cpus_per_task}",
        *([f"--mem={role.memory_gib}G"] if topology.scheduler.allows("--mem") else []),
        *_gpu_options(role, topology),
        "--overlap",
        "--export=ALL",
        "--unbuffered",
        # A step that is started again adds to its logs.
        "--open-mode=append",
        # Else srun waits for the other tasks, and the supervisor learns of a dead one only when all have ended.
        "--kill-on-bad-exit=1",
        f"--output={file_pattern(folder)}/%j_%t_log.out",
        f"--error={file_pattern(folder)}/%j_%t_log.err",
        *topology.scheduler.srun_options,
        *options,
        *prefix,
        *command,
    ]


def gpu_request(count: int, topology: Topology) -> list[str]:
    """How `count` GPUs of each node are asked for at this site; [] where they come with the node."""
    scheduler = topology.scheduler
    typed = f"{scheduler.gpu_type}:{count}" if scheduler.gpu_type else f"{count}"
    return {"gres": [f"--gres=gpu:{typed}"], "gpus-per-node": [f"--gpus-per-node={typed}"], "none": []}[scheduler.gpu_directive]


def _gpu_options(role: RolePlan, topology: Topology) -> list[str]:
    if topology.scheduler.gpu_directive == "none":
        return []
    # Each step sees the node's GPUs up to its own last one; the role itself picks from gpu_first on.
    return gpu_request(role.gpu_first + role.gpus_per_node, topology) if role.gpus_per_node else ["--gres=none"]
