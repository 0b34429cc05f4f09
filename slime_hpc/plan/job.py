"""The job plan: which node does what. The frozen result of an experiment and a topology.

Nodes are numbered as in the allocation; their names are known only when the job runs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

RoleKind = Literal["controller", "router", "engines", "trainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """One srun step: some tasks of one kind on some nodes of the allocation."""

    name: str
    """Unique in the job; names the step, the log folder and the endpoint files."""
    kind: RoleKind
    nodes: tuple[int, ...]
    """Indices of the nodes in the allocation, in rank order."""
    tasks_per_node: int
    """Trainer: ranks. Engines: one task starts one engine. Controller, router: 1."""
    gpus_per_node: int
    """GPUs of the step on each node; 0 for a step that needs none."""
    gpu_first: int
    """Index, on each node, of the first GPU of the step."""
    cpus_per_task: int
    memory_gib: int
    """Memory of the step on each node."""
    port_first: int
    """Port that the first task of a node tries first; its task i tries port_first + i * PORTS_PER_TASK."""
    group: int = 0
    """Engines: index into experiment.rollout.groups."""

    @property
    def num_tasks(self) -> int:
        """Tasks of the step over all nodes."""
        return len(self.nodes) * self.tasks_per_node


PORTS_PER_TASK = 16
"""SGLang wants a few ports around its own (NCCL, ZeroMQ, bootstrap)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Estimated GiB on one GPU (CPU cluster: in one rank or engine process)."""

    role: str
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    cache_gib: float
    available_gib: float
    """Memory of the GPU, or the task's share of the node; 0 = unknown."""

    @property
    def total_gib(self) -> float:
        """Sum of the parts."""
        return self.weights_gib + self.gradients_gib + self.optimizer_gib + self.activations_gib + self.cache_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One job: its nodes, and the steps that run on them."""

    name: str
    scheduler: Literal["slurm", "local"]
    accelerator: Literal["cpu", "cuda"]
    num_nodes: int
    roles: tuple[RolePlan, ...]
    memory: tuple[MemoryEstimate, ...] = ()
    data_parallel: int = 1

    def role(self, name: str) -> RolePlan:
        """The role of that name."""
        return next(role for role in self.roles if role.name == name)

    def of_kind(self, kind: RoleKind) -> tuple[RolePlan, ...]:
        """All roles of one kind, in order."""
        return tuple(role for role in self.roles if role.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for plan.json and `plan --json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> JobPlan:
        """The inverse of `to_json`."""
        roles = tuple(RolePlan(**{**role, "nodes": tuple(role["nodes"])}) for role in value["roles"])
        memory = tuple(MemoryEstimate(**part) for part in value["memory"])
        return cls(**{**value, "roles": roles, "memory": memory})
