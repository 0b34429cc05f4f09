"""The supervisor with toy roles, as processes of this machine and as srun steps of a job on the cluster: alike in both."""

import json
import os
import time

import pytest
from places import LocalJob, await_tasks, outcome

from slime_hpc.observe import events
from slime_hpc.testing.toys import WORK_S, cleaned, started, starts, write_deeds

SERVING = {"controller": "serve", "trainer": "serve"}
ALL = {"controller-0", "router-0", "trainer-0", "trainer-1", "engines-0", "engines-1"}


def test_a_run_that_ends_well_is_completed_and_its_servers_are_stopped(place):
    run = place.make_run({})
    job = place.start(run)
    assert job.wait() == 0, job.output()
    assert outcome(run)["state"] == "COMPLETED"
    assert set(started(run)) == cleaned(run) == ALL
    assert not run.lock.exists()
    assert job.output().splitlines()[-1] == "COMPLETED"
    if place.name == "test-cluster":
        assert_placed_as_planned(started(run))


def assert_placed_as_planned(tasks):
    nodes = {name: task["node"] for name, task in tasks.items()}
    assert nodes == {"controller-0": "n1", "router-0": "n1", "trainer-0": "n1", "trainer-1": "n2", "engines-0": "n3", "engines-1": "n4"}
    assert all(task["address"].startswith("10.99.") for task in tasks.values())
    assert len({task["address"] for task in tasks.values()}) == 4
    with_gpus = {name: task["gpus"] for name, task in tasks.items() if task["gpus"]}
    assert with_gpus == dict.fromkeys(["trainer-0", "trainer-1", "engines-0", "engines-1"], "0")


@pytest.mark.parametrize(
    ("place", "role"),
    [
        *(("local", role) for role in ("controller", "router", "engines", "trainer")),
        *(pytest.param("slurm", role, marks=pytest.mark.slurm) for role in ("engines", "trainer")),
    ],
    indirect=["place"],
)
def test_a_role_that_fails_once_is_started_again_alone_and_the_run_ends_well(place, role):
    run = place.make_run({"controller": "outlast", f"{role}-0": "once"})
    job = place.start(run)
    assert job.wait() == 0, job.output()
    assert outcome(run) | {"state": "COMPLETED", "attempt": 0} == outcome(run)
    (event,) = [event for event in events.read(run.metrics) if event["kind"] == "restart"]
    assert (event["role"], event["restart"], event["of"]) == (role, 1, 3)
    assert "3" in event["cause"]
    assert f"restart 1 of {role}: {event['cause']}" in job.output().splitlines()
    assert starts(run) == {name: 2 if name.startswith(role) else 1 for name in ALL}


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_role_that_fails_again_before_anything_is_trained_is_given_up(place):
    run = place.make_run({**SERVING, "trainer-1": "raise"})
    job = place.start(run)
    assert job.wait() == 1, job.output()
    node = started(run)["trainer-1"]["node"]
    assert outcome(run)["cause"] == f"trainer rank 1 on {node}: the toy broke [toys] -> mend it"
    assert [event["restart"] for event in events.read(run.metrics)] == [1]
    assert not run.lock.exists()


@pytest.mark.parametrize(
    ("failed", "deed", "local_cause", "slurm_cause"),
    [
        ("trainer-1", "raise", *2 * ("trainer rank 1 on {node}: the toy broke [toys] -> mend it",)),
        ("router-0", "work", *2 * ("router ended with status 0",)),
        ("engines-1", "exit", "engines ended with status 3", "engines rank 1 on n4: Exited with exit code 3"),
        ("trainer-0", "killed", "trainer killed by signal 9", "trainer rank 0 on n1: Killed"),
    ],
)
def test_a_role_that_may_not_be_started_again_ends_the_run_within_seconds_with_one_line(place, failed, deed, local_cause, slurm_cause):
    kind = failed.partition("-")[0].removesuffix("s")
    run = place.make_run({**SERVING, failed: deed}, f"failure.{kind}_restarts=0")
    job = place.start(run)
    await_tasks(run)
    begun = time.monotonic()
    assert job.wait() == 1, job.output()
    # One second is the toy's own; the rest to notice, to stop five other tasks, and for Slurm to say so, on a busy machine.
    assert time.monotonic() - begun < 30
    value = outcome(run)
    assert value["state"] == "FAILED"
    assert value["cause"] == (local_cause if place.name == "local" else slurm_cause).format(node=started(run)[failed]["node"])
    assert job.output().splitlines()[-1] == f"FAILED: {value['cause']}"
    siblings = {name for name in ALL if name.partition("-")[0] == failed.partition("-")[0]}
    assert cleaned(run) >= ALL - siblings
    assert not run.lock.exists()


def test_a_second_supervisor_is_refused_and_cancelling_stops_the_first_in_order(place):
    run = place.make_run(SERVING)
    first = place.start(run)
    await_tasks(run)
    holder = json.loads(run.lock.read_text())
    second = LocalJob(run, SLURM_JOB_ID="7777", SLURM_JOB_NODELIST="n[1-4]")
    assert second.wait() == 2, second.output()
    who = "a local run" if place.name == "local" else f"job {first.id.id}"
    assert f"is held by {who} (pid {holder['pid']} on {holder['host']})" in second.output()
    assert outcome(run)["state"] == "RUNNING"
    assert [path.name for path in run.attempts.iterdir() if path.is_dir()] == ["0"]
    first.cancel()
    status = first.wait()
    assert outcome(run) | {"state": "CANCELLED", "cause": "told to end by SIGTERM"} == outcome(run), first.output()
    assert cleaned(run) == ALL
    assert not run.lock.exists()
    # Slurm calls a cancelled job CANCELLED, whatever its script returned.
    assert status == 1 if place.name == "local" else first.state() == "CANCELLED"


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_task_that_ignores_the_request_to_end_is_killed(place):
    run = place.make_run({**SERVING, "engines-0": "stubborn"})
    job = place.start(run)
    await_tasks(run)
    time.sleep(WORK_S + 0.5)
    job.cancel()
    assert job.wait() == 1
    assert cleaned(run) == ALL - {"engines-0"}
    with pytest.raises(ProcessLookupError):
        os.kill(started(run)["engines-0"]["pid"], 0)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_the_next_attempt_has_a_folder_of_its_own(place):
    run = place.make_run({"trainer-0": "raise"})
    assert place.start(run).wait() == 1
    write_deeds(run, {})
    assert place.start(run).wait() == 0
    assert outcome(run) | {"state": "COMPLETED", "attempt": 1} == outcome(run)
    assert {task["attempt"] for task in started(run, 1).values()} == {1}
    assert started(run, 0)
