"""Follows a run to its end through the files of its folder; asks the scheduler seldom."""

from __future__ import annotations

import json
import time
from typing import Any

from slime_hpc.cli.narrate import Narrator
from slime_hpc.cli.screen import stderr
from slime_hpc.errors import SchedulerError
from slime_hpc.launch import job
from slime_hpc.launch.saved import load_saved
from slime_hpc.launch.submissions import read_submissions
from slime_hpc.observe.tail import Tail
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm.client import Scheduler
from slime_hpc.slurm.states import UNKNOWN

POLL_S = 0.25
ASK_FIRST_S = 0.5
ASK_MOST_S = 10.0
"""The pause between two questions to the scheduler grows from the first to the second: many users' loops make a Slurm controller slow."""
UNKNOWN_S = 120.0
"""For so long nobody may know the job before following it is given up."""


def follow(run: RunFolder, scheduler: Scheduler) -> job.JobState:
    """Print the run's progress on stderr until the job that is its newest now has ended, whether or not another goes on with the run then.

    Raises SchedulerError when nobody knows the job any more.
    """
    experiment, _, _ = load_saved(run)
    watch = JobWatch(run, scheduler)
    narrator = Narrator(experiment.steps, attempt=watch.submission.attempt if watch.submission else 0)
    tail = Tail(run.metrics)
    console = stderr()
    with console.status("") as spinner:
        while True:
            # Asked before the events are read: what an ended job wrote is there to be read.
            state = watch.state()
            for line in tail.lines():
                for text in narrator.tell(json.loads(line)):
                    console.print(text, soft_wrap=True)
            if state.ended:
                return state
            spinner.update(f"{state.id} {state.state}: {narrator.now() or phase(read_status(run), experiment.steps)}")
            time.sleep(POLL_S)


def read_status(run: RunFolder) -> dict[str, Any]:
    """What the controller does now; {} before it does anything."""
    try:
        value: dict[str, Any] = json.loads(run.status.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return value


def phase(status: dict[str, Any], steps: int) -> str:
    """The controller's status as text."""
    if not status:
        return "the controller has not begun"
    return f"{status['phase']}, step {status['step']}/{steps}, for {max(0.0, time.time() - status['since']):.0f} s"


class JobWatch:
    """The state of the job that is the newest now, asked for at growing intervals, and at once when the outcome file changes."""

    def __init__(self, run: RunFolder, scheduler: Scheduler) -> None:
        self._run = run
        self._scheduler = scheduler
        self.submission = next(reversed(read_submissions(run)), None)
        """None when the script was submitted by hand: then whichever job holds the run."""
        self._pause_s = ASK_FIRST_S
        self._next = 0.0
        self._outcome = -1
        self._known = time.monotonic()
        self._state = job.JobState(id="", state=UNKNOWN)

    def state(self) -> job.JobState:
        """The newest answer. Raises SchedulerError when nobody has known the job for long."""
        outcome = self._run.outcome.stat().st_mtime_ns if self._run.outcome.exists() else 0
        if outcome != self._outcome:
            self._outcome, self._pause_s, self._next = outcome, ASK_FIRST_S, 0.0
        if time.monotonic() >= self._next:
            self._state = job.job_state(self._run, self._scheduler, self.submission)
            self._next = time.monotonic() + self._pause_s
            self._pause_s = min(ASK_MOST_S, 1.5 * self._pause_s)
        if self._state.state != UNKNOWN:
            self._known = time.monotonic()
        elif time.monotonic() - self._known > UNKNOWN_S:
            raise SchedulerError(
                f"For {UNKNOWN_S:.0f} s the scheduler has not known job {self._state.id}, and it left no outcome.",
                where=str(self._run.path),
                fix="see `slime-hpc logs`",
            )
        return self._state
