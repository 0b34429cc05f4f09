"""A job that is cancelled in the middle and resumed trains what an uninterrupted one does, to the last bit."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import numpy as np
import pytest

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from tests.e2e.conftest import TWO_TRAINERS, Run, final_weights, finished, slime_hpc

pytestmark = pytest.mark.slow
CANCEL_AFTER = 13
"""A step after the checkpoint of step 10, so that trained steps are lost with the job."""


@pytest.fixture(scope="module")
def resumed(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    cwd = tmp_path_factory.mktemp("resume")
    job = slime_hpc("submit", "demo", *TWO_TRAINERS, "--parsable", cwd=cwd).stdout.strip()
    (folder,) = (cwd / "runs" / "demo").iterdir()
    _wait_for_step(RunFolder(folder), CANCEL_AFTER)
    subprocess.run(["scancel", job], check=True, timeout=60)
    _wait_until_ended(job)
    return finished(slime_hpc("resume", str(folder), "--wait", "--json", cwd=cwd), cwd)


def _wait_for_step(run: RunFolder, step: int, timeout_s: float = 900.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if step in events.by_step(run.metrics, "push"):
            return
        time.sleep(0.2)
    pytest.fail(f"step {step} was not reached: {run.path}")


def _wait_until_ended(job: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        left = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True, timeout=60)
        if job not in left.stdout:
            return
        time.sleep(0.5)
    pytest.fail(f"job {job} did not end after scancel")


def test_it_goes_on_from_the_newest_complete_checkpoint(resumed: Run) -> None:
    attempts = [event for event in events.read(resumed.folder.metrics) if event["kind"] == "attempt"]
    assert [(event["attempt"], event["step"]) for event in attempts] == [(0, 0), (1, 10)]


def test_no_group_is_lost_and_none_is_in_two_batches(resumed: Run) -> None:
    groups: list[int] = []
    for step in range(1, 41):
        groups += sorted(set(hdf5.read(resumed.folder.batch(step)).group_N.tolist()))
    assert groups == list(range(40 * 32))


def test_sealed_batches_are_not_generated_again(resumed: Run) -> None:
    rollouts = [event["step"] for event in events.read(resumed.folder.metrics) if event["kind"] == "rollout"]
    assert rollouts == list(range(1, 41))


def test_weights_and_rewards_are_those_of_a_run_without_interruption(resumed: Run, data_parallel_demo: Run) -> None:
    assert resumed.rewards == data_parallel_demo.rewards
    ours, theirs = final_weights(resumed), final_weights(data_parallel_demo)
    assert ours.keys() == theirs.keys()
    assert len(ours) >= 10
    for name, weight in ours.items():
        np.testing.assert_array_equal(weight, theirs[name], err_msg=name)
