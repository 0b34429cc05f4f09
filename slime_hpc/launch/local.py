"""A scheduler for this machine: runs a run's batch script as a process of its own session, which outlives the one that started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path

from slime_hpc.errors import RunFolderError, SchedulerError
from slime_hpc.launch.lock import current_holder
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm.client import JobId, Scheduler

_PREFIX = "local-"


class LocalScheduler(Scheduler):
    """The script ends in `exec`, so the process that it starts becomes the supervisor; its id is local-<pid>."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def submit(self, script: Path) -> JobId:
        """Start the script; its output goes to attempts/<id>.log, as Slurm's does."""
        bash = shutil.which("bash")
        if bash is None:
            raise SchedulerError("There is no bash on this machine.", where="PATH", fix="install bash, which runs the batch script")
        log = self._run.attempts / "starting.log"
        pid = os.posix_spawn(
            bash,
            ["bash", str(script)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        job = JobId(f"{_PREFIX}{pid}")
        log.rename(self._run.attempts / f"{job.id}.log")
        return job

    def state(self, job: JobId) -> str:
        """RUNNING, or FAILED once it has ended; the run's outcome knows better how."""
        return "RUNNING" if self._runs_here(job) or current_holder(self._run) is not None else "FAILED"

    def cancel(self, job: JobId) -> None:
        """SIGTERM to the supervisor. Raises RunFolderError when it runs on another machine."""
        if self._runs_here(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(job), signal.SIGTERM)
        elif (holder := current_holder(self._run)) is not None:
            if holder.host != socket.gethostname():
                raise RunFolderError(
                    f"The run is a local run of {holder.host}; this is {socket.gethostname()}.",
                    where=str(self._run.lock),
                    fix=f"cancel it on {holder.host}",
                )
            os.kill(holder.pid, signal.SIGTERM)

    def _runs_here(self, job: JobId) -> bool:
        """Whether the process is alive and still this run's: pids are used again, and a command line names the run folder."""
        pid = _pid(job)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return os.fsencode(self._run.path) in command


def _pid(job: JobId) -> int:
    return int(job.id.removeprefix(_PREFIX))
