"""Short runs on this machine: options that the demo leaves at their defaults, and an engine that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder
from tests.e2e.conftest import COMMAND, submit

pytestmark = pytest.mark.slow
SHORT = ("--set", "warm_start.steps=20", "--set", "eval.limit=8", "--set", "rollout.prompts_per_step=4")


def test_disk_transport_reference_model_and_two_updates(tmp_path: Path) -> None:
    # Without a good start every answer is wrong, no advantage differs from 0, and the policy stays where the reference is.
    options = (
        "warm_start.steps=200",
        "sync.transport=disk",
        "algorithm.kl_coef=0.05",
        "trainer.updates_per_step=2",
        "steps=3",
        "trainer.recompute=true",
    )
    run = submit("demo", *SHORT, *(word for option in options for word in ("--set", option)), cwd=tmp_path)
    trains = run.events("train")
    assert [event["step"] for event in trains] == [1, 2, 3]
    # The policy leaves the reference with its first update, so the second of the same step sees a divergence.
    assert all(event["kl"] > 0 for event in trains)
    assert all(event["seconds_logprobs"] > 0 for event in trains)
    assert max(event["verify_abs_diff"] for event in run.events("push")) <= 1e-4
    assert max(event["logprob_abs_diff_max"] for event in trains) <= 1e-4


def test_delta_transport(tmp_path: Path) -> None:
    options = ("sync.transport=delta", "sync.delta.full_interval=3", f"sync.delta.local={tmp_path / 'local'}", "steps=3")
    run = submit("demo", *SHORT, *(word for option in options for word in ("--set", option)), cwd=tmp_path)
    pushes = run.events("push")
    assert [event["step"] for event in pushes] == [0, 1, 2, 3]
    # Full, two deltas, full.
    assert [event["bytes_wire"] == event["bytes"] for event in pushes] == [True, False, False, True]
    assert max(event["verify_abs_diff"] for event in pushes) <= 1e-4
    assert max(event["logprob_abs_diff_max"] for event in run.events("train")) <= 1e-4
    assert [path.name for path in run.folder.weights.iterdir()] == ["v3"]
    assert list((tmp_path / "local").iterdir()) == []


def test_an_engine_that_dies_and_may_not_be_started_again_ends_the_run_within_seconds_and_is_named(tmp_path: Path) -> None:
    command = [COMMAND, "submit", "demo", *SHORT, "--set", "steps=200", "--set", "failure.engine_restarts=0", "--wait"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        run = _wait_for_step(tmp_path, 2)
        endpoint = json.loads(run.endpoint(0, "engines-0").read_text())
        (server,) = [child for child in psutil.Process(endpoint["pid"]).children(recursive=True) if "scheduler" in child.name()]
        killed = time.monotonic()
        os.kill(server.pid, signal.SIGKILL)
        _, told = waiting.communicate(timeout=120)
        assert time.monotonic() - killed < 60
    assert waiting.returncode == 1
    outcome = json.loads(run.outcome.read_text())
    assert outcome["state"] == "FAILED"
    assert "engines" in outcome["cause"]
    assert "\n" not in outcome["cause"]
    assert outcome["cause"] in told
    left = [process for process in psutil.process_iter(["cmdline"]) if str(run.path) in " ".join(process.info["cmdline"] or [])]
    assert not left


def _wait_for_step(cwd: Path, step: int, timeout_s: float = 300.0) -> RunFolder:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for folder in cwd.glob("runs/demo/*"):
            if step in events.by_step(RunFolder(folder).metrics, "push"):
                return RunFolder(folder)
        time.sleep(0.2)
    pytest.fail(f"step {step} was not reached in {cwd}")
