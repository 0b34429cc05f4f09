"""Cancelling, with a scheduler that calls the job CANCELLED at once, as Slurm may while the supervisor still ends."""

import json
import time

import pytest

from slime_hpc.errors import SchedulerError
from slime_hpc.launch import job, lock
from slime_hpc.launch.submissions import Submission, append_submission
from slime_hpc.run_folder import RunFolder


class Hasty:
    def __init__(self):
        self.cancelled = []
        self.now = "RUNNING"

    def state(self, job_id):
        return self.now

    def cancel(self, job_id):
        self.cancelled.append(job_id.id)
        self.now = "CANCELLED"


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path)
    run.control.mkdir()
    run.attempts.mkdir()
    append_submission(run, Submission(id="42", cluster="", submitted=time.time(), attempt=0))
    return run


def hold(run, *, left_s):
    """A supervisor on another node holds the run, and says so for the last time: in `left_s` it counts as gone."""
    holder = {"host": "elsewhere", "pid": 7, "job": "42", "boot": "b", "time": time.time() - lock.STALE_S + left_s}
    run.lock.write_text(json.dumps(holder))


def test_cancel_returns_when_the_run_can_be_resumed(run):
    scheduler = Hasty()
    hold(run, left_s=1.0)
    assert job.cancel(run, scheduler).state == "CANCELLED"
    assert lock.current_holder(run) is None
    assert scheduler.cancelled == ["42"]


def test_a_job_that_has_ended_is_not_cancelled_again_but_waited_for(run):
    scheduler = Hasty()
    scheduler.now = "CANCELLED"
    hold(run, left_s=1.0)
    assert job.cancel(run, scheduler).state == "CANCELLED"
    assert lock.current_holder(run) is None
    assert scheduler.cancelled == []


def test_a_run_that_stays_held_is_an_error(run, monkeypatch):
    monkeypatch.setattr(job, "CANCEL_TIMEOUT_S", 0.5)
    hold(run, left_s=30.0)
    with pytest.raises(SchedulerError, match=r"Job 42 \(CANCELLED\) still holds the run folder 0 s after it was cancelled"):
        job.cancel(run, Hasty())
