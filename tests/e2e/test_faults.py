"""Parts of a run on the cluster are killed, one after the other, each in another step: it ends as if nothing had happened."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from tests.e2e.conftest import COMMAND, TWO_TRAINERS, Run, final_weights, finished, submit

pytestmark = pytest.mark.slow
STEPS = 9
# One engine: without it nothing is generated, so the run must wait for it.
SETTINGS = (
    "demo", *TWO_TRAINERS, "--set", f"steps={STEPS}", "--set", "warm_start.steps=150", "--set", "eval.limit=8",
    "--set", "rollout.prompts_per_step=8", "--set", "checkpoint.interval=2", "--set", "rollout.groups=[{engines = 1, nodes = 1}]",
)  # fmt: skip
KILLED = {1: ("engines", 0, "scheduler"), 3: ("router", 0, "router"), 5: ("controller", 0, ""), 7: ("trainer", 1, "")}
"""By step: role, rank, and a part of the name or command of its process to kill; "": the task itself."""


def tasks(run: RunFolder, role: str, rank: int) -> Iterator[psutil.Process]:
    """The processes of a task, on whichever node; seen from outside the nodes' namespaces."""
    folder = str(run.role(0, role))
    for process in psutil.process_iter():
        try:
            task = [process, *process.parents()]
            owners = [each for each in task if folder in each.cmdline() and each.environ().get("SLURM_PROCID") == str(rank)]
            if owners and "submitit.core._submit" in owners[0].cmdline() and "srun" not in owners[0].name():
                yield process
        except psutil.Error:
            continue


def kill(run: RunFolder, role: str, rank: int, part: str) -> None:
    found = [
        process
        for process in tasks(run, role, rank)
        if (
            part in process.name() or any(part in word for word in process.cmdline())
            if part
            else "submitit.core._submit" in process.cmdline()
        )
    ]
    assert found, f"no process {part!r} of {role} rank {rank}"
    found[-1].send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return submit(*SETTINGS, cwd=tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def disturbed(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    cwd = tmp_path_factory.mktemp("disturbed")
    command = [COMMAND, "submit", *SETTINGS, "--wait", "--json"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        deadline = time.monotonic() + 1200
        for step, (role, rank, part) in KILLED.items():
            while not (folders := list(cwd.glob("runs/demo/*"))) or step not in events.by_step(RunFolder(folders[0]).metrics, "train"):
                assert waiting.poll() is None, waiting.communicate()
                assert time.monotonic() < deadline, f"step {step} was not reached"
                time.sleep(0.1)
            kill(RunFolder(folders[0]), role, rank, part)
        output, told = waiting.communicate(timeout=1200)
    assert waiting.returncode == 0, told
    return finished(subprocess.CompletedProcess(command, 0, output, told), cwd)


def test_each_part_is_started_again_alone(disturbed: Run) -> None:
    restarts = [event["role"] for event in events.read(disturbed.folder.metrics) if event["kind"] == "restart"]
    assert restarts == ["router", "controller", "trainer"]
    attempts = [(event["attempt"], event["step"]) for event in events.read(disturbed.folder.metrics) if event["kind"] == "attempt"]
    assert {attempt for attempt, _ in attempts} == {0}
    # The trainer goes on from the newest checkpoint; a new controller is told where it stands.
    assert attempts[-1][1] in (6, 8)
    told = [event["what"] for event in events.read(disturbed.folder.metrics) if event["kind"] == "engine" and event["name"] == "engines-0"]
    assert told[0] == "lost"
    assert told[-1] == "serves"


def test_the_waiting_user_reads_who_was_started_again_and_why(disturbed: Run) -> None:
    told = [line for line in disturbed.log.splitlines() if re.match(r"restart 1 of at most 3: (router|controller|trainer)", line)]
    assert len(told) == 3
    assert "engines-0 lost" in disturbed.log
    assert "engines-0 serves" in disturbed.log


def test_no_group_is_lost_or_generated_twice(disturbed: Run) -> None:
    groups: list[int] = []
    for step in range(1, STEPS + 1):
        groups += sorted(set(hdf5.read(disturbed.folder.batch(step)).group_N.tolist()))
    assert groups == list(range(STEPS * 8))
    rollouts = [event["step"] for event in events.read(disturbed.folder.metrics) if event["kind"] == "rollout"]
    assert rollouts == list(range(1, STEPS + 1))


def test_rewards_and_weights_are_those_of_a_run_in_which_nothing_died(disturbed: Run, undisturbed: Run) -> None:
    assert disturbed.rewards == undisturbed.rewards
    assert max(disturbed.rewards) > 0
    ours, theirs = final_weights(disturbed), final_weights(undisturbed)
    assert ours.keys() == theirs.keys()
    assert len(ours) >= 10
    for name, weight in ours.items():
        np.testing.assert_array_equal(weight, theirs[name], err_msg=name)
