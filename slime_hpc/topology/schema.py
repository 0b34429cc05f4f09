"""The topology file: what a cluster is like, as far as a plan and a script need to know.

Knows nothing of experiments, and asks no machine anything.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slime_hpc.config.schema import Mount, NonNegative, Positive, Section, TimeLimit

InterfaceName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.@-]*$")]
"""One interface by its name: lists, negations (^lo) and addresses are NCCL's, and make gloo fail."""


class Scheduler(Section):
    """Who starts processes."""

    kind: Literal["slurm", "local"] = Field(description="'slurm', or 'local': processes on this machine.")
    partition: str | None = Field(default=None, description="Default partition.")
    account_required: bool = Field(default=False, description="Refuse to render without slurm.account.")
    default_time: TimeLimit = Field(default="01:00:00", description="Time limit when the experiment names none.")
    grace_s: Positive = Field(default=120, description="Seconds before the time limit at which the job is told to stop.")
    directives: list[str] = Field(default_factory=list, description="#SBATCH directives every job here needs, e.g. '--exclusive'.")
    gpu_directive: Literal["gpus-per-node", "gres", "none"] = Field(default="gpus-per-node", description="How GPUs are asked for here.")
    emit_memory: bool = Field(default=True, description="Ask for the node's memory with --mem.")
    srun_options: list[str] = Field(default_factory=list, description="Options every srun step here needs.")


class Node(Section):
    """One node; all nodes of a topology file are alike."""

    gpus: Positive = Field(description="GPUs Slurm hands out on a node; on a CPU cluster, the most ranks or engine processes.")
    cpus: Positive = Field(description="Cores Slurm hands out on a node.")
    memory_gib: Positive = Field(description="Memory Slurm hands out on a node.")
    gpu_memory_gib: NonNegative = Field(default=0, description="Memory of a GPU; 0 on a CPU cluster.")


class Network(Section):
    """How nodes reach one another."""

    interface: InterfaceName | None = Field(
        default=None, description="Interface of the fabric's IP addresses; unset: what the host name resolves to."
    )
    port_first: int = Field(
        default=21000, ge=1024, le=65000, description="First port the roles try; a role moves on from a busy one to the next free one."
    )


class Container(Section):
    """How images are run here."""

    runtime: Literal["none", "apptainer", "pyxis", "enroot"] = Field(default="none", description="Container runtime of the site.")
    mounts: list[Mount] = Field(default_factory=list, description="Bind mounts every job here needs.")


class Topology(Section):
    """One cluster, or one partition of it."""

    name: str = Field(description="Name of the cluster.")
    description: str = Field(default="", description="One line on what it is.")
    accelerator: Literal["cpu", "cuda"] = Field(description="What trainer and engines compute on.")
    scheduler: Scheduler = Field(description="The scheduler.")
    nodes: Positive = Field(description="Nodes a job may ask for.")
    node: Node = Field(description="What a node has.")
    network: Network = Field(default_factory=Network, description="The network.")
    container: Container = Field(default_factory=Container, description="Containers.")
    modules: list[str] = Field(default_factory=list, description="Environment modules the script loads.")
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables of every role.")

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        if self.scheduler.kind == "local" and self.nodes != 1:
            raise ValueError(f"A local topology is this machine alone, so nodes = 1, not {self.nodes}.")
        if self.accelerator == "cuda" and self.node.gpu_memory_gib == 0:
            raise ValueError("node.gpu_memory_gib is missing; without it no plan can be checked against the memory of a GPU.")
        return self
