"""Which nodes and GPUs each role gets. Pure.

The trainer takes the first nodes, each group of engines the next ones; controller and router are sidecars on the first node.
On a one-node topology all share the node: each takes the GPUs after the one before it. Colocated, engine and trainer have the same GPU.
"""

from __future__ import annotations

import math

from slime_hpc.config.schema import Experiment, RolloutGroup, Trainer
from slime_hpc.errors import PlanError
from slime_hpc.plan.job import PORTS_PER_TASK, RolePlan
from slime_hpc.topology.schema import Topology

SIDECAR_CPUS = 2
SIDECAR_MEMORY_GIB = 4
_LAST_PORT = 65_535


def partition(experiment: Experiment, topology: Topology) -> tuple[RolePlan, ...]:
    """All roles of the job. Raises PlanError with the arithmetic when they do not fit."""
    ranks = trainer_ranks_per_node(experiment, topology)
    colocated = experiment.rollout.colocate
    if colocated:
        _check_colocated(experiment, topology, ranks)
    elif experiment.sync.transport == "ipc":
        raise PlanError(
            "IPC needs trainer and engine on one GPU.", where="sync.transport", fix="set rollout.colocate = true, or another transport"
        )
    sizes = [(f"trainer {experiment.trainer.nodes}", experiment.trainer.nodes)]
    sizes += [
        (f"rollout.groups[{i}] {n}", n) for i, group in enumerate(experiment.rollout.groups) for n in [group_nodes(group, topology, i)]
    ]
    shared = topology.nodes == 1 or colocated
    needed = 1 if shared and all(n == 1 for _, n in sizes) else sum(n for _, n in sizes)
    if needed > topology.nodes:
        raise PlanError(
            f"{' + '.join(text for text, _ in sizes)} = {needed} nodes; topology {topology.name!r} has {topology.nodes}.",
            where="trainer.nodes, rollout.groups",
            fix="lower one of them, or choose a larger topology",
        )
    ports = _Ports(topology.network.port_first)
    trainer_nodes = tuple(range(experiment.trainer.nodes))
    roles = [
        _sidecar("controller", ports.take(1)),
        _sidecar("router", ports.take(1)),
        _role("trainer", "trainer", trainer_nodes, ranks, ranks, 0, topology, ports.take(ranks)),
    ]
    node_next, gpu_next = (0, 0 if colocated else ranks) if shared else (experiment.trainer.nodes, 0)
    for index, group in enumerate(experiment.rollout.groups):
        count = group_nodes(group, topology, index)
        per_node = group.engines // count
        nodes = tuple(range(node_next, node_next + count))
        gpus = per_node * group.gpus_per_engine
        first = gpu_next if gpu_next + gpus <= topology.node.gpus else _no_room(topology, gpu_next, gpus, index)
        name = "engines" if len(experiment.rollout.groups) == 1 else f"engines-{index}"
        roles.append(_role(name, "engines", nodes, per_node, gpus, first, topology, ports.take(per_node), group=index))
        node_next, gpu_next = (0, gpu_next + gpus) if shared else (node_next + count, 0)
    return tuple(roles)


def _check_colocated(experiment: Experiment, topology: Topology, ranks: int) -> None:
    if topology.accelerator != "cuda":
        raise PlanError(
            f"rollout.colocate shares a GPU; {topology.name!r} has none.",
            where="rollout.colocate",
            fix="set rollout.colocate = false, or choose another topology",
        )
    engines = sum(group.engines * group.gpus_per_engine for group in experiment.rollout.groups)
    if (experiment.trainer.nodes * ranks, engines) != (1, 1):
        raise PlanError(
            f"rollout.colocate joins one trainer rank and one engine of one GPU; there are {experiment.trainer.nodes} x {ranks} ranks "
            f"and engines of {engines} GPUs.",
            where="rollout.colocate, trainer.nodes, trainer.gpus_per_node, rollout.groups",
            fix="set trainer.nodes = 1, trainer.gpus_per_node = 1 and one engine, or rollout.colocate = false",
        )
    if experiment.sync.transport == "distributed":
        raise PlanError(
            "NCCL does not join two processes on one GPU, so colocated weights cannot go through a process group.",
            where="sync.transport, rollout.colocate",
            fix='set sync.transport = "ipc" (or "disk")',
        )


def trainer_ranks_per_node(experiment: Experiment, topology: Topology) -> int:
    """GPUs (CPU: ranks) of the trainer on each of its nodes."""
    trainer = experiment.trainer
    model_ranks = trainer.model_ranks
    ranks = trainer.gpus_per_node
    if ranks == 0:
        ranks = topology.node.gpus if topology.accelerator == "cuda" else max(1, math.ceil(_least_ranks(trainer) / trainer.nodes))
    if ranks > topology.node.gpus:
        raise PlanError(
            f"trainer.gpus_per_node = {ranks}; a node of {topology.name!r} has {topology.node.gpus}.",
            where="trainer.gpus_per_node",
            fix=f"at most {topology.node.gpus}",
        )
    world = ranks * trainer.nodes
    if world % model_ranks:
        raise PlanError(
            f"{trainer.nodes} nodes x {ranks} = {world} ranks do not divide by tensor_parallel {trainer.tensor_parallel} x "
            f"pipeline_parallel {trainer.pipeline_parallel} x context_parallel {trainer.context_parallel} = {model_ranks}.",
            where="trainer.nodes, trainer.gpus_per_node, trainer.tensor_parallel, trainer.pipeline_parallel, trainer.context_parallel",
            fix=f"make the number of ranks a multiple of {model_ranks}",
        )
    return ranks


def _least_ranks(trainer: Trainer) -> int:
    """Ranks of one replica, or of as many as it takes to place every expert once."""
    return math.lcm(trainer.model_ranks, trainer.pipeline_parallel * trainer.expert_parallel * trainer.expert_tensor_parallel)


def group_nodes(group: RolloutGroup, topology: Topology, index: int) -> int:
    """Nodes of a group of engines."""
    where = f"rollout.groups[{index}]"
    if group.kind != "regular":
        raise PlanError(
            f"Engines of kind {group.kind!r} cannot be planned: nothing would connect prefill and decode engines.",
            where=f"{where}.kind",
            fix='use "regular"',
        )
    per_node = topology.node.gpus // group.gpus_per_engine
    if per_node == 0:
        raise PlanError(
            f"An engine of {group.gpus_per_engine} GPUs does not fit on a node of {topology.node.gpus}.",
            where=f"{where}.gpus_per_engine",
            fix=f"at most {topology.node.gpus}; engines over several nodes are not supported",
        )
    nodes = group.nodes or math.ceil(group.engines / per_node)
    if group.engines % nodes or group.engines // nodes > per_node:
        raise PlanError(
            f"{group.engines} engines on {nodes} nodes: {group.engines} / {nodes} = {group.engines / nodes:g} a node; "
            f"a node takes {topology.node.gpus} / {group.gpus_per_engine} = {per_node}.",
            where=f"{where}.engines, {where}.nodes",
            fix="make the engines a multiple of the nodes",
        )
    return nodes


def _no_room(topology: Topology, first: int, gpus: int, index: int) -> int:
    raise PlanError(
        f"GPUs {first} to {first + gpus - 1} of a node are needed; topology {topology.name!r} has {topology.node.gpus} a node.",
        where=f"rollout.groups[{index}].engines, trainer.gpus_per_node",
        fix="lower one of them",
    )


def _sidecar(kind: str, port: int) -> RolePlan:
    return RolePlan(
        name=kind, kind=kind, nodes=(0,), tasks_per_node=1, gpus_per_node=0, gpu_first=0,  # type: ignore[arg-type]
        cpus_per_task=SIDECAR_CPUS, memory_gib=SIDECAR_MEMORY_GIB, port_first=port,
    )  # fmt: skip


def _role(
    name: str, kind: str, nodes: tuple[int, ...], tasks: int, gpus: int, gpu_first: int, topology: Topology, port: int, group: int = 0
) -> RolePlan:
    reserved = 0 if topology.nodes == 1 else 2 * SIDECAR_CPUS
    cpus = (topology.node.cpus - reserved) // tasks
    if cpus == 0 and topology.scheduler.kind == "slurm":
        # srun would wait for cores that the job does not have.
        raise PlanError(
            f"{tasks} tasks of {name!r} on a node of {topology.node.cpus} cores, {reserved} of them reserved for controller and router: "
            f"({topology.node.cpus} - {reserved}) / {tasks} is less than one core each.",
            where="topology: node.cpus",
            fix="use fewer GPUs of a node, or more nodes",
        )
    return RolePlan(
        name=name, kind=kind, nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus, gpu_first=gpu_first,  # type: ignore[arg-type]
        cpus_per_task=max(1, cpus),
        memory_gib=max(1, topology.node.memory_gib - 2 * SIDECAR_MEMORY_GIB),
        port_first=port, group=group,
    )  # fmt: skip


class _Ports:
    """Hands out ranges of ports, PORTS_PER_TASK a task of one node; no two roles share one, whichever nodes they are on."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, tasks: int) -> int:
        first = self._next
        self._next += tasks * PORTS_PER_TASK
        if self._next > _LAST_PORT + 1:
            raise PlanError(
                f"The roles need ports up to {self._next - 1}; the last there is is {_LAST_PORT}.",
                where="topology: network.port_first",
                fix="lower it",
            )
        return first
