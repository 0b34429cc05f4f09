"""How a job goes back into Slurm's queue by itself, and whether it does."""

from __future__ import annotations

import signal
import sys

from slime_hpc.config.schema import SlurmJob
from slime_hpc.errors import SchedulerError
from slime_hpc.launch.verdict import State
from slime_hpc.slurm.client import JobId, SlurmCommands
from slime_hpc.topology.schema import Scheduler


def requeues(state: State, restarts: int, slurm: SlurmJob, scheduler: Scheduler) -> bool:
    """`restarts`: how often the job was started again. Only a run that was stopped before its end goes on; a failure would come again."""
    return state == "STOPPED" and scheduler.may_requeue and restarts < slurm.max_requeues


def requeue(job_id: str) -> None:
    """Put the job that this process is of back into the queue: its last deed, for Slurm then ends it. A refusal is printed."""
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    print(f"back into the queue: scontrol requeue {job_id}", flush=True)
    try:
        SlurmCommands().requeue(JobId(job_id))
    except SchedulerError as error:
        print(f"slime-hpc: {error}", file=sys.stderr, flush=True)
