"""Whether this cluster's Slurm would run a job as the topology says. Pure: judges what Slurm said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slime_hpc.site.check import Check, fail, ok, warn
from slime_hpc.site.slurm_facts import SlurmFacts
from slime_hpc.topology.schema import Topology
from slime_hpc.topology.time_limit import seconds

OLDEST = (22, 5)
"""The oldest Slurm whose --overlap also shares memory and GPUs between steps."""
KILL_WAIT_S = 30
_INHERITED = re.compile(r"(SBATCH|SALLOC|SRUN)_\w+|SLURM_(?!CONF$|JWT$|CLUSTERS$|TIME_FORMAT$)\w+")


def slurm_checks(facts: SlurmFacts, topology: Topology, environment: Mapping[str, str], *, missing: tuple[str, ...]) -> Iterator[Check]:
    """All of them; `missing`: Slurm's commands that are not on PATH."""
    needed = [command for command in missing if command != "sacct"]
    if needed:
        yield fail("slurm commands", f"not on PATH: {', '.join(needed)}", "run this on a login node, or load the site's Slurm module")
        return
    yield (
        ok("slurm commands", "all there")
        if not missing
        else warn(
            "slurm commands", "sacct is missing: the end of a job is known only while Slurm remembers it", "none needed; see MinJobAge"
        )
    )
    if not facts.answers:
        yield fail("slurm controller", "`scontrol show config` did not answer", "try again later; ask `scontrol ping`")
        return
    yield ok("slurm controller", f"cluster {facts.config.get('ClusterName', '?')} answers")
    yield _version(facts.version)
    yield from _config(facts.config)
    yield from _partition(facts, topology)
    inherited = sorted(name for name in environment if _INHERITED.fullmatch(name))
    yield (
        ok("environment", "no options of Slurm are inherited")
        if not inherited
        else warn(
            "environment",
            f"inherited: {', '.join(inherited[:5])}{' ...' if len(inherited) > 5 else ''}",
            "slime-hpc drops them when it submits; before a `sbatch` by hand, unset them",
        )
    )


def _version(text: str) -> Check:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if numbers is None:
        return warn("slurm version", f"{text!r} is not understood", "see `sinfo --version`")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        return fail("slurm version", f"{text}: steps cannot share a node's memory and GPUs", "22.05 or newer is needed")
    return ok("slurm version", text)


def _config(config: Mapping[str, str]) -> Iterator[Check]:
    wait = re.match(r"\d+", config.get("KillWait", ""))
    if wait is None or int(wait[0]) >= KILL_WAIT_S:
        yield ok("KillWait", config.get("KillWait", "unknown"))
    else:
        yield warn(
            "KillWait",
            f"{config['KillWait']}: so long a cancelled or preempted job has to end in order",
            "ask the site for 30 s or more; a checkpoint cut short is never used",
        )
    mode = config.get("PreemptMode", "OFF")
    if mode == "OFF":
        yield ok("PreemptMode", "jobs are not preempted")
    elif "SUSPEND" in mode or "GANG" in mode:
        yield warn("PreemptMode", f"{mode}: a suspended job's collectives time out", "choose a partition or QoS that is not preempted")
    else:
        yield warn("PreemptMode", f"{mode}: jobs may be preempted", "keep checkpoint.interval small; `slime-hpc resume` goes on")
    requeue = config.get("JobRequeue", "1")
    if requeue == "1":
        yield ok("JobRequeue", "jobs may be requeued")
    else:
        yield warn("JobRequeue", f"{requeue}: a job that loses its node is not requeued", "go on with `slime-hpc resume`")


def _partition(facts: SlurmFacts, topology: Topology) -> Iterator[Check]:
    wanted = topology.scheduler.partition
    groups = [group for group in facts.groups if wanted in (None, group.partition)]
    if not groups:
        known = ", ".join(sorted({group.partition for group in facts.groups})) or "none"
        yield fail("partition", f"there is no partition {wanted!r}", f"scheduler.partition of the topology; there are: {known}")
        return
    if not any(group.is_up for group in groups):
        yield fail("partition", f"{wanted or 'every partition'} is down", "wait, or choose another in scheduler.partition")
        return
    names = {group.partition for group in groups}
    nodes = max(sum(group.nodes for group in groups if group.partition == name) for name in names)
    yield (
        ok("partition", f"{wanted or 'any'}: {nodes} nodes")
        if nodes >= topology.nodes
        else fail(
            "partition", f"{wanted or 'any'}: {nodes} nodes; the topology says {topology.nodes}", f"set nodes = {nodes} in the topology"
        )
    )
    node, best = topology.node, max(groups, key=lambda group: (group.gpus, group.memory_mib, group.cpus))
    if node.cpus > best.cpus:
        yield fail("node.cpus", f"nodes have {best.cpus}; the topology says {node.cpus}", f"set node.cpus = {best.cpus}")
    if topology.scheduler.allows("--mem") and node.memory_gib > best.memory_mib / 1024:
        yield fail(
            "node.memory_gib",
            f"Slurm hands out {best.memory_mib / 1024:.1f} GiB; the topology asks for {node.memory_gib}",
            f"set node.memory_gib = {best.memory_mib // 1024}" if best.memory_mib > 1024 else 'add "--mem" to scheduler.forbidden',
        )
    if topology.scheduler.gpu_directive != "none" and node.gpus > best.gpus:
        yield fail(
            "node.gpus", f"nodes have {best.gpus} GPUs; the topology says {node.gpus}", "correct node.gpus, or scheduler.gpu_directive"
        )
    if re.match(r"\d", best.max_time) and seconds(topology.scheduler.default_time) > seconds(best.max_time):
        yield fail(
            "scheduler.default_time",
            f"the partition allows {best.max_time}; the topology says {topology.scheduler.default_time}",
            f'set scheduler.default_time = "{best.max_time}"',
        )
