"""What keys of one topology file say against one another, each as one sentence that names the keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from slime_hpc.topology.time_limit import seconds

if TYPE_CHECKING:
    from slime_hpc.topology.schema import Topology

OWN_DIRECTIVES = {
    "--job-name": "the experiment's name",
    "--account": "slurm.account",
    "--partition": "scheduler.partition",
    "--qos": "scheduler.qos",
    "--nodes": "the plan",
    "--ntasks-per-node": "the plan",
    "--cpus-per-task": "node.cpus",
    "--mem": "node.memory_gib",
    "--gres": "node.gpus and scheduler.gpu_directive",
    "--gpus-per-node": "node.gpus and scheduler.gpu_directive",
    "--time": "scheduler.default_time and slurm.time",
    "--segment": "scheduler.segment",
    "--signal": "scheduler.grace_s",
    "--open-mode": "slime-hpc",
    "--no-requeue": "slime-hpc",
    "--requeue": "slime-hpc",
    "--chdir": "the run folder",
    "--output": "the run folder",
}
"""Options of sbatch that the script holds anyway, and where each comes from."""

OWN_STEP_OPTIONS = frozenset(
    {
        "--job-name",
        "--nodes",
        "--nodelist",
        "--ntasks",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--mem",
        "--gres",
        "--gpus-per-node",
        "--overlap",
        "--export",
        "--unbuffered",
        "--kill-on-bad-exit",
        "--output",
        "--error",
        "--container-image",
        "--container-mounts",
        "--container-env",
    }
)
"""Options of srun that a step holds anyway."""

NEEDED = frozenset({"--nodes", "--time", "--signal", "--chdir", "--output"})
"""Without these no job can be started, stopped in time, or found again."""

_WRONG_ANYWHERE = {"--gpus-per-task": "hides from each task the GPUs of the others, which breaks CUDA IPC within a node"}
_NOT_OURS = re.compile(r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|SLURM_.*|SBATCH_.*|MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK")


def name_of(option: str) -> str:
    """`--mem=0` is `--mem`."""
    return option.partition("=")[0]


def contradiction(topology: Topology) -> str | None:
    """The first one, or None."""
    return next((problem for check in _CHECKS for problem in check(topology)), None)


def _local(topology: Topology) -> Iterator[str]:
    scheduler = topology.scheduler
    if scheduler.kind != "local":
        return
    if topology.nodes != 1:
        yield f"A local topology is this machine alone, so nodes = 1, not {topology.nodes}."
    for key in ("partition", "qos", "account_required", "limits", "directives", "srun_options", "forbidden", "segment"):
        if getattr(scheduler, key):
            yield f"scheduler.{key} is for Slurm; with scheduler.kind = 'local' nothing reads it."


def _gpus(topology: Topology) -> Iterator[str]:
    scheduler, node = topology.scheduler, topology.node
    if topology.accelerator == "cuda" and node.gpu_memory_gib == 0:
        yield "node.gpu_memory_gib is missing; without it no plan can be checked against the memory of a GPU."
    if scheduler.gpu_directive != "none" and not scheduler.allows(f"--{scheduler.gpu_directive}"):
        yield f"scheduler.gpu_directive = {scheduler.gpu_directive!r}, which scheduler.forbidden forbids."
    if scheduler.gpu_type and scheduler.gpu_directive == "none":
        yield f"scheduler.gpu_type = {scheduler.gpu_type!r}, but scheduler.gpu_directive = 'none': no GPUs are asked for."
    if scheduler.kind == "slurm" and topology.accelerator == "cuda" and node.cpus < node.gpus:
        yield f"node.cpus = {node.cpus} is less than node.gpus = {node.gpus}: a rank needs a core."


def _options(topology: Topology) -> Iterator[str]:
    scheduler = topology.scheduler
    for key in ("directives", "srun_options"):
        names = [name_of(option) for option in getattr(scheduler, key)]
        for name in names:
            if name in _WRONG_ANYWHERE:
                yield f"scheduler.{key} holds {name}, which {_WRONG_ANYWHERE[name]}."
            if not scheduler.allows(name):
                yield f"scheduler.{key} holds {name}, which scheduler.forbidden forbids."
            if names.count(name) > 1:
                yield f"scheduler.{key} holds {name} twice."
    for name in map(name_of, scheduler.directives):
        if name in OWN_DIRECTIVES:
            yield f"scheduler.directives holds {name}, which comes from {OWN_DIRECTIVES[name]}."
        if name.startswith("--container"):
            yield f"scheduler.directives holds {name}: the supervisor must run outside any container; see container.runtime."
    for name in map(name_of, scheduler.srun_options):
        if name in OWN_STEP_OPTIONS:
            yield f"scheduler.srun_options holds {name}, which every step has from the plan."
        if name == "--exclusive":
            yield "scheduler.srun_options holds --exclusive, but steps share their nodes (--overlap); srun refuses both together."
    for name in scheduler.forbidden:
        if name in NEEDED:
            yield f"scheduler.forbidden holds {name}, without which no job can be run."


def _time(topology: Topology) -> Iterator[str]:
    scheduler = topology.scheduler
    if scheduler.kind == "slurm" and scheduler.grace_s >= seconds(scheduler.default_time):
        yield f"scheduler.grace_s = {scheduler.grace_s} is not less than scheduler.default_time = {scheduler.default_time!r}."
    for index, limit in enumerate(scheduler.limits):
        where = f"scheduler.limits.{index}"
        if limit.max_nodes is not None and limit.min_nodes > limit.max_nodes:
            yield f"{where}.min_nodes = {limit.min_nodes} exceeds {where}.max_nodes = {limit.max_nodes}."
        if limit.max_nodes is None and limit.max_time is None and limit.min_nodes == 1:
            yield f"{where} limits nothing: give max_time, min_nodes or max_nodes."
        is_default = limit.partition in (None, scheduler.partition) and limit.qos in (None, scheduler.qos)
        if is_default and limit.max_time is not None and seconds(scheduler.default_time) > seconds(limit.max_time):
            yield f"scheduler.default_time = {scheduler.default_time!r} exceeds {where}.max_time = {limit.max_time!r}."


def _placement(topology: Topology) -> Iterator[str]:
    scheduler = topology.scheduler
    if scheduler.segment > topology.nodes:
        yield f"scheduler.segment = {scheduler.segment} exceeds nodes = {topology.nodes}."
    if scheduler.segment and not scheduler.allows("--segment"):
        yield "scheduler.segment is set, and scheduler.forbidden forbids --segment."


def _mounts(topology: Topology) -> Iterator[str]:
    targets = [mount.split(":")[1] for mount in topology.container.mounts]
    for mount, target in zip(topology.container.mounts, targets, strict=True):
        if not target.startswith("/"):
            yield f"container.mounts holds {mount!r}: {target!r} is no absolute path."
        if targets.count(target) > 1:
            yield f"container.mounts mounts two folders on {target!r}."


def _environment(topology: Topology) -> Iterator[str]:
    for name, value in topology.environment.items():
        if _NOT_OURS.fullmatch(name):
            yield f"environment.{name} is set for each task by Slurm or the launcher; a fixed value breaks them."
        if name == "GLOO_SOCKET_IFNAME" and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.@-]*", value):
            yield f"environment.{name} = {value!r}: gloo takes one interface by its name; lists and ^ are NCCL's."
    if any(not module.strip() for module in topology.modules):
        yield "modules holds an empty name."


_CHECKS: tuple[Callable[[Topology], Iterator[str]], ...] = (_local, _gpus, _options, _time, _placement, _mounts, _environment)
