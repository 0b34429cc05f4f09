"""Slurm's commands, each with a time limit, since they hang for long when slurmctld is gone.

`--json` is not used: its schema changes with every release.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slime_hpc.errors import SchedulerError
from slime_hpc.slurm import states

# Inherited from an allocation, these silently change what sbatch and srun do; the ones kept only say how Slurm is reached.
_SCRUBBED = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "PMI_", "PMIX_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})


@dataclass(frozen=True, slots=True)
class JobId:
    """A job on a cluster."""

    id: str
    cluster: str = ""


class Scheduler(Protocol):
    """What slime-hpc asks of a scheduler."""

    def submit(self, script: Path) -> JobId:
        """Submit a batch script. Raises SchedulerError in Slurm's own words."""
        ...

    def state(self, job: JobId) -> str:
        """Long form of the job's state; UNKNOWN when nobody knows the job. Raises SchedulerError when nobody answers."""
        ...

    def cancel(self, job: JobId) -> None:
        """Cancel the job."""
        ...


class SlurmCommands(Scheduler):
    """sbatch, squeue, scontrol, sacct and scancel of this machine."""

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s

    def submit(self, script: Path) -> JobId:
        """`sbatch --parsable`: prints "id" or "id;cluster"."""
        output = self._run(["sbatch", "--parsable", str(script)])
        number, _, cluster = output.strip().splitlines()[-1].partition(";")
        if not number.isdigit():
            raise SchedulerError(f"sbatch answered {output.strip()!r}, not a job id.", where="sbatch --parsable")
        return JobId(number, cluster)

    def state(self, job: JobId) -> str:
        """squeue, then scontrol (which keeps ended jobs for MinJobAge), then sacct (which many sites lack)."""
        questions = (
            ["squeue", *self._where(job), "--noheader", "--format=%T", "--jobs", job.id],
            ["scontrol", *self._where(job), "--oneliner", "show", "job", job.id],
            ["sacct", *self._where(job), "-X", "--noheader", "--parsable2", "--format=State", "--jobs", job.id],
        )
        failures = []
        for question in questions:
            try:
                output = self._run(question)
            except SchedulerError as error:
                failures.append(error)
                continue
            if (state := _parse_state(output)) != states.UNKNOWN:
                return state
        # A silent slurmctld says nothing about the job; taken for the job's end, it would end a run that goes on.
        if failures and failures[0].where.startswith("squeue") and "Invalid job id" not in failures[0].what:
            raise failures[0]
        return states.UNKNOWN

    def cancel(self, job: JobId) -> None:
        """`scancel`."""
        self._run(["scancel", *self._where(job), job.id])

    def requeue(self, job: JobId) -> None:
        """`scontrol requeue`: ends the job, as scancel does, and puts it back into the queue under its own id."""
        self._run(["scontrol", *self._where(job), "requeue", job.id])

    def _where(self, job: JobId) -> list[str]:
        return ["-M", job.cluster] if job.cluster else []

    def _run(self, command: Sequence[str]) -> str:
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=self._timeout_s, env=clean_environment(os.environ))
        except FileNotFoundError as error:
            raise SchedulerError(
                f"There is no {command[0]} on this machine.",
                where="PATH",
                fix="submit from a login node of the cluster, or use --topology local",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"{command[0]} did not answer within {self._timeout_s:g} s.", where=" ".join(command), fix="try again later"
            ) from error
        if result.returncode:
            raise SchedulerError(
                f"{command[0]}: {result.stderr.strip() or result.stdout.strip()}", where=" ".join(command), fix="see the message"
            )
        return result.stdout


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of an allocation this process may itself run in."""
    return {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_SCRUBBED)}


def _parse_state(output: str) -> str:
    # With -M, squeue and sacct name the cluster first.
    text = "\n".join(line for line in output.splitlines() if not line.startswith("CLUSTER: "))
    return states.normalize(text.partition("JobState=")[2] or text)
