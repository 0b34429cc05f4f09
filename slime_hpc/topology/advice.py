"""What a topology file leaves open that runs often fail on, each with its key and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slime_hpc.topology.schema import Topology

_EPHEMERAL = 32_768
"""Where Linux begins to hand out ports of its own, unless a site changed it."""


class Advice(NamedTuple):
    """One thing to look at."""

    key: str
    what: str
    fix: str


def advise(topology: Topology) -> Iterator[Advice]:
    """In the order of the file's keys."""
    scheduler = topology.scheduler
    if scheduler.kind == "local":
        return
    if scheduler.partition is None and scheduler.qos is None and not scheduler.directives:
        yield Advice("scheduler.partition", "is unset: jobs go to Slurm's default partition", "name the partition that has these nodes")
    if topology.accelerator == "cuda" and "--gpu-bind=none" not in scheduler.srun_options and scheduler.gpu_directive != "none":
        yield Advice("scheduler.srun_options", "lacks --gpu-bind=none: a site may bind each task to one GPU", 'add "--gpu-bind=none"')
    if topology.accelerator == "cuda" and topology.network.interface is None:
        yield Advice(
            "network.interface", "is unset: collectives take the interface of the host's name", "name the fabric's, from `ip -br address`"
        )
    if topology.network.port_first + 16 * (2 + topology.node.gpus) > _EPHEMERAL:
        yield Advice("network.port_first", "reaches into the usual ephemeral ports", f"lower it, well below {_EPHEMERAL}")
    if topology.container.runtime != "none" and not topology.container.mounts:
        yield Advice("container.mounts", "is empty: a container sees the run folder alone", "mount where models and prompts lie")
    if not topology.shared:
        yield Advice("shared", "is empty: nothing keeps a run folder from a disk that one node sees alone", "name the shared folders")
