"""The job of a run: submit it, ask how it stands, cancel it; alike with Slurm and without."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from slime_hpc.errors import RunFolderError, SchedulerError
from slime_hpc.launch.local import LocalScheduler
from slime_hpc.launch.lock import current_holder, require_free
from slime_hpc.launch.submissions import Submission, append_submission, next_attempt, read_submissions
from slime_hpc.plan.job import JobPlan
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm import states
from slime_hpc.slurm.client import JobId, Scheduler, SlurmCommands

NOT_SUBMITTED = "NOT_SUBMITTED"
_ENDED = states.ENDED | {"STOPPED"}
CANCEL_TIMEOUT_S = 120.0
"""Longer than the supervisor's grace and Slurm's default KillWait (30 s) together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How the newest job of a run stands."""

    id: str
    state: str
    """Slurm's word (slurm/states.py), STOPPED when it ended before its time limit in order to go on later, or NOT_SUBMITTED."""
    cause: str = ""
    """One line, when it did not end well."""

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs or waits."""
        return self.state in _ENDED

    @property
    def exit_code(self) -> int:
        """0 when the run is complete."""
        return 0 if self.state in states.ENDED_WELL else 1


def scheduler_of(run: RunFolder, plan: JobPlan) -> Scheduler:
    """What runs the jobs of this run."""
    return LocalScheduler(run) if plan.scheduler == "local" else SlurmCommands()


def submit(run: RunFolder, scheduler: Scheduler) -> Submission:
    """Submit the run's script and note the job. Raises RunFolderError while another job has the run, SchedulerError."""
    require_free(run)
    before = job_state(run, scheduler)
    if before.state != NOT_SUBMITTED and not before.ended and before.state != states.UNKNOWN:
        raise RunFolderError(
            f"{run.path} is held by job {before.id} ({before.state}).",
            where=str(run.job),
            fix=f"wait for it, or `slime-hpc cancel {run.path}`",
        )
    attempt = next_attempt(run)
    job = scheduler.submit(run.script)
    submission = Submission(id=job.id, cluster=job.cluster, submitted=time.time(), attempt=attempt)
    append_submission(run, submission)
    return submission


def job_state(run: RunFolder, scheduler: Scheduler, submission: Submission | None = None) -> JobState:
    """How the newest job stands, or that of `submission`, though the run may have gone on in a later one since.

    Scheduler, outcome file and lock together: the scheduler knows that a job ended, the outcome file how.
    """
    newest = _newest(run)
    if newest is None:
        return JobState(id="", state=NOT_SUBMITTED)
    if submission not in (None, newest):
        return _past_state(run, scheduler, submission, newest)
    said = scheduler.state(JobId(newest.id, newest.cluster))
    # Read after the scheduler's answer: the supervisor writes it before it ends.
    outcome = _outcome(run, newest.attempt)
    if said in ("COMPLETED", "FAILED", states.UNKNOWN) and outcome.get("state") in _ENDED:
        return JobState(id=newest.id, state=outcome["state"], cause=outcome["cause"])
    if said in states.ENDED_BADLY:
        return JobState(id=newest.id, state=said, cause=outcome.get("cause") or f"it left no outcome; {_last_words(run, newest.id)}")
    if said == states.UNKNOWN and current_holder(run) is not None:
        return JobState(id=newest.id, state="RUNNING")
    return JobState(id=newest.id, state=said)


def _past_state(run: RunFolder, scheduler: Scheduler, past: Submission, newest: Submission) -> JobState:
    """A job that another one follows has ended: a run is submitted again only when its folder is free."""
    paths = [path for path in map(run.attempt_outcome, range(past.attempt, newest.attempt)) if path.exists()]
    outcome = json.loads(paths[-1].read_text(encoding="utf-8")) if paths else {}
    if outcome.get("state") in _ENDED:
        return JobState(id=past.id, state=outcome["state"], cause=outcome["cause"])
    said = scheduler.state(JobId(past.id, past.cluster))
    return JobState(id=past.id, state=said if said in states.ENDED else "FAILED", cause=f"it left no outcome; {_last_words(run, past.id)}")


def cancel(run: RunFolder, scheduler: Scheduler) -> JobState:
    """Cancel the newest job; wait until the run folder is free. Raises RunFolderError when there is none, SchedulerError when it stays."""
    newest = _newest(run)
    if newest is None:
        raise RunFolderError(f"No job runs in {run.path}.", where=str(run.job), fix="see `slime-hpc status`")
    if not job_state(run, scheduler).ended:
        scheduler.cancel(JobId(newest.id, newest.cluster))
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    # Slurm calls a job CANCELLED while its supervisor still ends: only when that has let go of the folder can the run be resumed.
    while not (state := job_state(run, scheduler)).ended or current_holder(run) is not None:
        if time.monotonic() > deadline:
            raise SchedulerError(
                f"Job {newest.id} ({state.state}) still holds the run folder {CANCEL_TIMEOUT_S:.0f} s after it was cancelled.",
                where=str(run.path),
                fix="see `slime-hpc logs`, and the scheduler's own tools",
            )
        time.sleep(0.2)
    return state


def _newest(run: RunFolder) -> Submission | None:
    """The newest job in job.json, or the one that holds the run, when the script was submitted by hand."""
    submissions = read_submissions(run)
    holder = current_holder(run)
    if holder is not None and holder.job not in ("local", *(submission.id for submission in submissions)):
        return Submission(id=holder.job, cluster="", submitted=holder.time, attempt=next_attempt(run) - 1)
    if submissions:
        return submissions[-1]
    return Submission(id=f"local-{holder.pid}", cluster="", submitted=holder.time, attempt=next_attempt(run) - 1) if holder else None


def _outcome(run: RunFolder, attempt: int) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(run.outcome.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return value if value["attempt"] >= attempt else {}


def _last_words(run: RunFolder, job: str) -> str:
    path = run.attempts / f"{job}.log"
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    words = [line.strip() for line in lines if line.strip()]
    return f"the last line of {path.name}: {words[-1][:300]}" if words else "its log is empty"
