"""What a role's process knows when it starts: the run, the plan, its own place in it."""

from __future__ import annotations

from dataclasses import dataclass

from slime_hpc.config.schema import Experiment
from slime_hpc.plan.job import PORTS_PER_TASK, JobPlan, RolePlan
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.schema import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """One task of one role in one attempt."""

    run: RunFolder
    experiment: Experiment
    topology: Topology
    plan: JobPlan
    role: RolePlan
    attempt: int
    """0 for the first start of the job, then 1, 2 ... with every requeue or resume."""
    rank: int
    """Of this task in the role, 0 .. role.num_tasks - 1."""
    local_rank: int
    """Of this task on its node."""
    address: str
    """IP address at which other nodes reach this task."""

    @property
    def token(self) -> str:
        """Bearer token of the run."""
        return self.run.token.read_text(encoding="ascii").strip()

    @property
    def port_first(self) -> int:
        """First port this task tries."""
        return self.role.port_first + self.local_rank * PORTS_PER_TASK
