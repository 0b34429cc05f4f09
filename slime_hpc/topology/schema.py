"""The topology file: what a cluster is like, as far as a plan and a script need to know.

Knows nothing of experiments, and asks no machine anything. What contradicts itself in a file is refused here (consistency.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slime_hpc.config.schema import Mount, NonNegative, Positive, Section, TimeLimit
from slime_hpc.topology.consistency import contradiction

InterfaceName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.@-]*$")]
"""One interface by its name: lists, negations (^lo) and addresses are NCCL's, and make gloo fail."""
Option = Annotated[str, Field(pattern=r"^--[a-z][a-z0-9-]*(=.+)?$")]
"""One option of sbatch or srun, in its long form: only so can two of them be compared."""
OptionName = Annotated[str, Field(pattern=r"^--[a-z][a-z0-9-]*$")]
Folder = Annotated[str, Field(pattern=r"^/[^:,]*$")]
"""An absolute path that a mount can name."""


class Limit(Section):
    """What one partition or one QoS allows a job; a key that is unset holds for all of them."""

    partition: str | None = Field(default=None, description="Partition that this limits.")
    qos: str | None = Field(default=None, description="QoS that this limits.")
    max_time: TimeLimit | None = Field(default=None, description="Longest time limit.")
    min_nodes: Positive = Field(default=1, description="Fewest nodes of a job.")
    max_nodes: Positive | None = Field(default=None, description="Most nodes of a job.")


class Scheduler(Section):
    """Who starts processes."""

    kind: Literal["slurm", "local"] = Field(description="'slurm', or 'local': processes on this machine.")
    partition: str | None = Field(default=None, description="Default partition.")
    qos: str | None = Field(default=None, description="Default QoS.")
    account_required: bool = Field(default=False, description="Refuse to render without slurm.account.")
    account_suffix: str = Field(default="", description="How accounts for these GPUs end, e.g. '@h100'.")
    default_time: TimeLimit = Field(default="01:00:00", description="Time limit when the experiment names none.")
    grace_s: Positive = Field(default=120, description="Seconds before the time limit at which the job is told to stop.")
    limits: list[Limit] = Field(default_factory=list, description="What partitions and QoS allow; all that match a job hold.")
    directives: list[Option] = Field(default_factory=list, description="#SBATCH directives every job here needs, e.g. '--exclusive'.")
    srun_options: list[Option] = Field(default_factory=list, description="Options every srun step here needs.")
    forbidden: list[OptionName] = Field(default_factory=list, description="Options that no script here may hold, e.g. '--mem'.")
    gpu_directive: Literal["gpus-per-node", "gres", "none"] = Field(default="gpus-per-node", description="How GPUs are asked for here.")
    gpu_type: str = Field(default="", description="Type in the GPU request, e.g. 'h100' for --gres=gpu:h100:4.")
    segment: NonNegative = Field(default=0, description="Nodes that must share a block (--segment); 0 = not asked for.")

    def allows(self, option: str) -> bool:
        """Whether a script here may hold the option, given by its name."""
        return option not in self.forbidden

    @property
    def may_requeue(self) -> bool:
        """Whether a job here may go back into the queue."""
        return self.kind == "slurm" and self.allows("--requeue")


class Node(Section):
    """One node; all nodes of a topology file are alike."""

    gpus: Positive = Field(description="GPUs Slurm hands out on a node; on a CPU cluster, the most ranks or engine processes.")
    cpus: Positive = Field(description="Cores Slurm hands out on a node.")
    memory_gib: Positive = Field(description="Memory Slurm hands out on a node.")
    gpu_memory_gib: NonNegative = Field(default=0, description="Memory of a GPU; 0 on a CPU cluster.")
    gpu_vendor: Literal["nvidia", "amd"] = Field(default="nvidia", description="Whose GPUs: what a container must be given of the driver.")
    local_folder: Folder = Field(default="/tmp", description="On the node's own disk or memory: caches of compiled kernels lie there.")


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
    accelerator: Literal["cpu", "cuda"] = Field(description="What trainer and engines compute on; PyTorch calls AMD's GPUs 'cuda' too.")
    scheduler: Scheduler = Field(description="The scheduler.")
    nodes: Positive = Field(description="Nodes a job may ask for.")
    node: Node = Field(description="What a node has.")
    network: Network = Field(default_factory=Network, description="The network.")
    container: Container = Field(default_factory=Container, description="Containers.")
    shared: list[Folder] = Field(default_factory=list, description="Folders that all nodes see; empty = not known.")
    modules: list[str] = Field(default_factory=list, description="Environment modules the script loads.")
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables of every role.")

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        if (problem := contradiction(self)) is not None:
            raise ValueError(problem)
        return self
