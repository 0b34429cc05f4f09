"""Parking a run before its time limit, and going on: decisions, and toy roles on this machine and on the cluster."""

import json
import signal
import subprocess
import threading
import time

import pytest
from places import await_tasks, outcome

from slime_hpc.config.schema import Failure, SlurmJob
from slime_hpc.control import park
from slime_hpc.launch.parking import Parking, patience_s
from slime_hpc.launch.requeue import requeues
from slime_hpc.launch.saved import load_saved
from slime_hpc.launch.step import Step, StepLauncher
from slime_hpc.launch.supervisor import Supervisor
from slime_hpc.run_folder import RunFolder
from slime_hpc.testing.toys import PARKED_AT, cleaned, started
from slime_hpc.topology.schema import Scheduler

SLURM, NO_REQUEUE, LOCAL = Scheduler(kind="slurm"), Scheduler(kind="slurm", forbidden=["--requeue"]), Scheduler(kind="local")
PARKS = {"trainer-0": "park", "trainer-1": "serve"}


@pytest.mark.parametrize(
    ("state", "restarts", "max_requeues", "scheduler", "expected"),
    [
        ("STOPPED", 0, 10, SLURM, True),
        ("STOPPED", 9, 10, SLURM, True),
        ("STOPPED", 10, 10, SLURM, False),
        ("STOPPED", 0, 0, SLURM, False),
        ("STOPPED", 0, 10, NO_REQUEUE, False),
        ("STOPPED", 0, 10, LOCAL, False),
        ("FAILED", 0, 10, SLURM, False),
        ("CANCELLED", 0, 10, SLURM, False),
        ("COMPLETED", 0, 10, SLURM, False),
    ],
)
def test_only_a_stopped_run_within_its_budget_goes_back_into_the_queue(state, restarts, max_requeues, scheduler, expected):
    assert requeues(state, restarts, SlurmJob(max_requeues=max_requeues), scheduler) is expected


def test_the_steps_ends_have_their_share_of_the_grace():
    assert patience_s(120, 30) == 90
    assert patience_s(20, 30) == 10


@pytest.fixture
def noticed(tmp_path):
    """A parking that has heard the signal, for attempt 3."""
    before = signal.getsignal(signal.SIGUSR2)

    def make(patience):
        parking = Parking(RunFolder(tmp_path), 3, patience_s=patience)
        parking.listen()
        assert parking.poll() is None
        assert not park.asked(RunFolder(tmp_path), 3)
        signal.raise_signal(signal.SIGUSR2)
        return RunFolder(tmp_path), parking

    yield make
    signal.signal(signal.SIGUSR2, before)


def test_the_trainer_is_asked_once_the_notice_comes_and_its_answer_ends_the_attempt(noticed):
    run, parking = noticed(60)
    assert parking.poll() is None
    assert park.asked(run, 3)
    assert not park.asked(run, 4)
    park.answer(run, 2, 11)
    assert parking.poll() is None
    park.answer(run, 3, 12)
    assert parking.poll() == "parked at step 12"


def test_a_trainer_that_does_not_answer_is_waited_for_no_longer_than_there_is_time(noticed):
    run, parking = noticed(0)
    parking.poll()
    time.sleep(0.01)
    assert parking.poll() == "not parked within 0 s; it goes on from the newest checkpoint"
    assert park.asked(run, 3)


class ParkedAtOnce(Step, StepLauncher):
    """Every role ends well the moment that it is asked to park, before the supervisor looks again."""

    def __init__(self, run):
        self._run = run

    def start(self, role, payload):
        return self if role.kind in ("controller", "trainer") else Serving()

    def poll(self):
        if not park.asked(self._run, 0):
            return None
        park.answer(self._run, 0, PARKED_AT)
        return 0

    def running(self):
        return False

    def signal(self, number):
        pass


class Serving(ParkedAtOnce):
    def __init__(self):
        pass

    def poll(self):
        return None


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_run_whose_roles_have_ended_by_then_is_parked_and_not_complete(place):
    run = place.make_run({})
    _, _, plan = load_saved(run)
    before = signal.getsignal(signal.SIGUSR2)
    try:
        supervisor = Supervisor(run, plan, ParkedAtOnce(run), failure=Failure(), job_id="local", grace_s=60)
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGUSR2])
        timer.start()
        assert supervisor.supervise() == "STOPPED"
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)
    assert outcome(run)["cause"] == f"parked at step {PARKED_AT}"
    assert json.loads(run.attempt_outcome(0).read_text()) == outcome(run)


def test_a_run_is_parked_and_its_steps_end_in_order(place):
    run = place.make_run(PARKS, "slurm.max_requeues=0")
    job = place.start(run)
    await_tasks(run)
    job.notice()
    assert job.wait() == 1, job.output()
    assert outcome(run) | {"state": "STOPPED", "cause": f"parked at step {PARKED_AT}"} == outcome(run)
    assert cleaned(run) == set(started(run))
    assert not run.lock.exists()
    assert job.output().splitlines()[-1] == f"STOPPED: parked at step {PARKED_AT}"


@pytest.mark.parametrize("place", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_a_parked_job_goes_back_into_the_queue_and_ends_complete(place):
    run = place.make_run({"trainer-0": "park"})
    job = place.start(run)
    await_tasks(run)
    job.notice()
    assert job.wait() == 0, job.output()
    assert outcome(run) | {"state": "COMPLETED", "attempt": 1} == outcome(run)
    assert len(started(run, 0)) == len(started(run, 1)) == 6
    lines = job.output().splitlines()
    assert f"STOPPED: parked at step {PARKED_AT}" in lines
    assert f"back into the queue: scontrol requeue {job.id.id}" in lines
    assert lines[-1] == "COMPLETED"


@pytest.mark.parametrize("place", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_a_job_that_slurm_requeues_without_notice_goes_on(place):
    run = place.make_run({"trainer-0": "park"})
    job = place.start(run)
    await_tasks(run)
    subprocess.run(["scontrol", "requeue", job.id.id], timeout=30, check=True)
    assert job.wait() == 0, job.output()
    assert outcome(run) | {"state": "COMPLETED", "attempt": 1} == outcome(run)
    assert job.output().splitlines()[-1] == "COMPLETED"


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_run_that_is_complete_is_not_run_again(place):
    run = place.make_run({})
    assert place.start(run).wait() == 0
    again = place.start(run)
    assert again.wait() == 0
    assert again.output().splitlines() == ["COMPLETED already"]
    assert outcome(run)["attempt"] == 0
    assert not started(run, 1)
    assert not run.lock.exists()
