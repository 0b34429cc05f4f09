"""One running step of a role, and what starts one: through srun in a job, as processes of this machine without Slurm.

Both run submitit's task entry on the role's folder, so ranks, logs and results look alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from submitit.core.utils import DelayedSubmission

from slime_hpc.config.schema import Experiment
from slime_hpc.launch.payload import RolePayload
from slime_hpc.launch.stop import die_with_parent
from slime_hpc.plan.job import RolePlan
from slime_hpc.render.srun import srun_command
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.hostlist import compress
from slime_hpc.topology.schema import Topology

# Until the payload sets its own handlers, submitit's would requeue the whole job on SIGUSR2: give it a signal that never comes.
_SUBMITIT = {"SUBMITIT_PREEMPT_SIGNAL": "URG"}


class Step(Protocol):
    """The running tasks of a role."""

    def poll(self) -> int | None:
        """Exit status once all tasks ended, or one of them failed; None while they run."""
        ...

    def running(self) -> bool:
        """Whether any task still runs, also after another one failed."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to every task; SIGKILL leaves nothing."""
        ...


class StepLauncher(Protocol):
    """Starts the step of a role."""

    def start(self, role: RolePlan, payload: RolePayload) -> Step:
        """Start all tasks; returns at once."""
        ...


def write_payload(folder: Path, job_id: str, payload: RolePayload) -> list[str]:
    """Put the payload where submitit's task entry looks for it; the command that runs it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    DelayedSubmission(payload).dump(folder / f"{job_id}_submitted.pkl")
    return [sys.executable, "-u", "-m", "submitit.core._submit", str(folder)]


class ProcessStep(Step):
    """Processes that are children of this one, each with a process group of its own."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def poll(self) -> int | None:
        """The first failure, or 0 once all ended well."""
        statuses = [process.poll() for process in self._processes]
        failed = [status for status in statuses if status]
        if failed:
            return failed[0]
        return None if None in statuses else 0

    def running(self) -> bool:
        """Whether one of the processes runs."""
        return any(process.poll() is None for process in self._processes)

    def signal(self, number: int) -> None:
        """To the processes; SIGKILL to their whole groups."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                elif process.poll() is None:
                    process.send_signal(number)


class SrunStep(ProcessStep):
    """One srun, which forwards SIGUSR2 to its tasks but answers SIGTERM by killing them; a task ends in order on either."""

    def signal(self, number: int) -> None:
        """To the tasks; SIGKILL to srun, which slurmstepd then follows."""
        super().signal(signal.SIGUSR2 if number == signal.SIGTERM else number)


class LocalLauncher(StepLauncher):
    """Every task is a process of this machine."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def start(self, role: RolePlan, payload: RolePayload) -> Step:
        """One process a rank, with the variables that submitit's local environment reads."""
        folder = self._run.role(payload.attempt, role.name)
        command = write_payload(folder, "local", payload)
        processes = []
        for rank in range(role.num_tasks):
            with (folder / f"local_{rank}_log.out").open("ab") as out, (folder / f"local_{rank}_log.err").open("ab") as err:
                processes.append(_spawn(command, self._environment(role, rank), out, err))
        return ProcessStep(processes)

    def _environment(self, role: RolePlan, rank: int) -> dict[str, str]:
        return {
            **os.environ,
            **_SUBMITIT,
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_JOB_ID": "local",
            "SUBMITIT_LOCAL_NTASKS": str(role.num_tasks),
            "SUBMITIT_LOCAL_JOB_NUM_NODES": str(len(role.nodes)),
            "SUBMITIT_LOCAL_NODEID": str(rank // role.tasks_per_node),
            "SUBMITIT_LOCAL_GLOBALID": str(rank),
            "SUBMITIT_LOCAL_LOCALID": str(rank % role.tasks_per_node),
        }


class SrunLauncher(StepLauncher):
    """Every role is one srun step of this job."""

    def __init__(self, run: RunFolder, experiment: Experiment, topology: Topology, *, job_id: str, hostnames: Sequence[str]) -> None:
        self._run = run
        self._experiment = experiment
        self._topology = topology
        self._job_id = job_id
        self._hostnames = hostnames

    def start(self, role: RolePlan, payload: RolePayload) -> Step:
        """One srun process; slurmstepd ends the tasks when it dies."""
        folder = self._run.role(payload.attempt, role.name)
        command = srun_command(
            role, self._experiment, self._topology, nodelist=compress([self._hostnames[index] for index in role.nodes]),
            folder=folder, run=self._run.path,
            command=write_payload(folder, self._job_id, payload),
        )  # fmt: skip
        # srun reads these as options of its own; the step's shape is on its command line.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SRUN_", "SLURM_CPUS_PER", "SLURM_MEM_PER", "SLURM_NTASKS"))
        }
        with (folder / "srun.log").open("ab") as log:
            return SrunStep([_spawn(command, {**environment, **_SUBMITIT, "SUBMITIT_EXECUTOR": "slurm"}, log, log)])


def _spawn(command: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=die_with_parent
    )
