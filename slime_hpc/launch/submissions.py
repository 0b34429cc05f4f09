"""job.json of a run folder: every job that was submitted for it, newest last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One job of a run."""

    id: str
    """Slurm's job id, or local-<pid>."""
    cluster: str
    """Slurm's cluster, "" for the default one."""
    submitted: float
    """Unix seconds."""
    attempt: int
    """The first attempt that this job makes; a requeued job makes more."""


def read_submissions(run: RunFolder) -> list[Submission]:
    """All jobs of the run; none when it was only rendered, or submitted by hand."""
    try:
        text = run.job.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [Submission(**value) for value in json.loads(text)]


def append_submission(run: RunFolder, submission: Submission) -> None:
    """Add the newest job."""
    write_atomic(run.job, json.dumps([asdict(each) for each in [*read_submissions(run), submission]], indent=1))


def next_attempt(run: RunFolder) -> int:
    """Number of the attempt that a job started now makes: 0, 1, 2 ..."""
    return 1 + max((int(path.name) for path in run.attempts.iterdir() if path.name.isdigit()), default=-1)
