"""A job that is told of its time limit parks, goes back into the queue by itself, and goes on where it was."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from slime_hpc.launch.submissions import read_submissions
from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from tests.e2e.conftest import COMMAND, TWO_TRAINERS, Run, finished

pytestmark = pytest.mark.slow
STEPS = 12
NOTICE_AFTER = 4
SHORT = (f"steps={STEPS}", "warm_start.steps=20", "checkpoint.interval=0", "eval.limit=8")


@pytest.fixture(scope="module")
def requeued(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    cwd = tmp_path_factory.mktemp("requeue")
    settings = [word for setting in SHORT for word in ("--set", setting)]
    command = [COMMAND, "submit", "demo", *TWO_TRAINERS, *settings, "--wait", "--json"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        run = _wait_for_step(waiting, cwd)
        (submission,) = read_submissions(run)
        subprocess.run(["scancel", "--signal=USR2", "--batch", submission.id], check=True, timeout=60)
        out, told = waiting.communicate(timeout=900)
    assert waiting.returncode == 0, told
    return finished(subprocess.CompletedProcess(command, 0, out, told), cwd)


def _wait_for_step(waiting: subprocess.Popen[str], cwd: Any, timeout_s: float = 600.0) -> RunFolder:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and waiting.poll() is None:
        for folder in cwd.glob("runs/demo/*"):
            if NOTICE_AFTER in events.by_step(RunFolder(folder).metrics, "push"):
                return RunFolder(folder)
        time.sleep(0.1)
    waiting.kill()
    pytest.fail(f"step {NOTICE_AFTER} was not reached: {waiting.communicate()}")


def test_one_job_makes_two_attempts_and_the_second_goes_on_from_the_parked_step(requeued: Run) -> None:
    (submission,) = read_submissions(requeued.folder)
    outcome = json.loads(requeued.folder.outcome.read_text())
    assert (outcome["state"], outcome["attempt"]) == ("COMPLETED", 1)
    parked = json.loads(requeued.folder.parked(0).read_text())["step"]
    assert NOTICE_AFTER <= parked < STEPS
    assert f"STOPPED: parked at step {parked}" in (requeued.folder.attempts / f"{submission.id}.log").read_text().splitlines()
    attempts = [event for event in events.read(requeued.folder.metrics) if event["kind"] == "attempt"]
    assert [(event["attempt"], event["step"]) for event in attempts] == [(0, 0), (1, parked)]


def test_the_only_checkpoints_are_those_of_start_park_and_end(requeued: Run) -> None:
    parked = json.loads(requeued.folder.parked(0).read_text())["step"]
    saved = [event["step"] for event in events.read(requeued.folder.metrics) if event["kind"] == "checkpoint"]
    assert saved == [0, parked, STEPS]


def test_no_step_is_trained_twice_and_no_batch_is_generated_twice(requeued: Run) -> None:
    for kind in ("rollout", "train"):
        assert [event["step"] for event in events.read(requeued.folder.metrics) if event["kind"] == kind] == list(range(1, STEPS + 1))


def test_no_group_is_lost_and_none_is_in_two_batches(requeued: Run) -> None:
    groups: list[int] = []
    for step in range(1, STEPS + 1):
        groups += sorted(set(hdf5.read(requeued.folder.batch(step)).group_N.tolist()))
    assert groups == list(range(STEPS * 32))
