"""The topology file: what a cluster is like, as far as a plan and a script need to know.

Knows nothing of experiments, and asks no machine anything.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slime_hpc.config.schema import NonNegative, Positive, Section


class Scheduler(Section):
    """Who starts processes."""

    kind: Literal["slurm", "local"] = Field(description="'slurm', or 'local': processes on this machine.")
    partition: str | None = Field(default=None, description="Default partition.")
    account_required: bool = Field(default=False, description="Refuse to render without slurm.account.")
    default_time: str = Field(default="01:00:00", description="Time limit when the experiment names none.")
    grace_s: Positive = Field(default=120, description="Seconds before the time limit at which the job is told to stop.")
    directives: list[str] = Field(default_factory=list, description="#SBATCH directives every job here needs, e.g. '--exclusive'.")
    gpu_directive: Literal["gpus-per-node", "gres", "none"] = Field(default="gpus-per-node", description="How GPUs are asked for here.")
    emit_memory: bool = Field(default=True, description="Ask for the node's memory with --mem.")
    srun_options: list[str] = Field(default_factory=list, description="Options every srun step here needs.")


class Node(Section):
    """One node; all nodes of a topology file are alike."""

    gpus: NonNegative = Field(description="GPUs Slurm hands out on a node; on a CPU cluster, the most ranks or engine processes.")
    cpus: Positive = Field(description="Cores Slurm hands out on a node.")
    memory_gib: Positive = Field(description="Memory Slurm hands out on a node.")
    gpu_memory_gib: NonNegative = Field(default=0, description="Memory of a GPU; 0 on a CPU cluster.")


class Network(Section):
    """How nodes reach one another."""

    interface: str | None = Field(
        default=None, description="Interface of the fabric's IP addresses; unset: what the host name resolves to."
    )
    port_first: int = Field(
        default=21000, ge=1024, le=65000, description="First port the roles try; a busy one moves on to the next free one."
    )


class Container(Section):
    """How images are run here."""

    runtime: Literal["none", "apptainer", "pyxis", "enroot"] = Field(default="none", description="Container runtime of the site.")
    mounts: list[str] = Field(default_factory=list, description="Bind mounts every job here needs.")


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
