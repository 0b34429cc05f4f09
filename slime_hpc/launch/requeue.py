"""Whether a job goes back into Slurm's queue by itself. Pure."""

from __future__ import annotations

from slime_hpc.config.schema import SlurmJob
from slime_hpc.launch.verdict import State
from slime_hpc.topology.schema import Scheduler


def requeues(state: State, restarts: int, slurm: SlurmJob, scheduler: Scheduler) -> bool:
    """`restarts`: how often the job was started again. Only a run that was stopped before its end goes on; a failure would come again."""
    return state == "STOPPED" and scheduler.may_requeue and restarts < slurm.max_requeues
