"""Runs on this machine without Slurm: the rendered script, a detached supervisor, a process a role. Only what the roles do is a toy."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_hpc.run_folder import RunFolder

TOYS = Path(__file__).parent / "toy_supervisor.py"


@pytest.fixture
def make_run(slime):
    """A rendered run of the demo, whose script starts the toys, as a person may edit it."""
    runs = []

    def make_run(name: str, toys: str) -> RunFolder:
        assert slime("render", "demo", "--run-id", name).exit_code == 0
        run = RunFolder(Path("runs/demo", name).absolute())
        script = run.script.read_text()
        command = f"exec {shlex.quote(sys.executable)} -m slime_hpc.launch.supervisor"
        assert command in script
        run.script.write_text(script.replace(command, f"exec {shlex.quote(sys.executable)} {shlex.quote(str(TOYS))}"))
        (run.path / "toys").write_text(toys)
        runs.append(run)
        return run

    yield make_run
    for run in runs:
        slime("cancel", str(run.path))


def wait_until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not within 60 s: {what}"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_ends_complete_and_leaves_its_logs(slime, make_run):
    run = make_run("good", "work")
    result = slime("resume", "good", "--wait", "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["state"] == "COMPLETED"
    assert (run.attempts / f"{value['id']}.log").read_text() == "COMPLETED\n"
    logs = slime("logs", "good").stdout
    assert "supervisor: COMPLETED" in logs
    assert "trainer-0: toy trainer 0" in logs
    assert slime("resume", "good").exit_code == 2


def test_a_run_is_detached_held_cancelled_and_resumed(slime, make_run):
    run = make_run("long", "serve")
    job = slime("resume", "long", "--parsable").stdout.strip()
    pid = int(job.removeprefix("local-"))
    assert os.getsid(pid) == pid
    wait_until(lambda: "toy controller" in slime("logs", "long", "--role", "controller").stdout, "the controller's first line")
    assert f"job    {job} RUNNING" in slime("status", "long").stdout
    refused = slime("resume", "long")
    assert refused.exit_code == 2
    assert "is held by a local run" in refused.stderr

    assert slime("cancel", "long").stdout == f"job {job}: CANCELLED\n"
    assert not alive(pid)
    assert not run.lock.exists()

    again = slime("resume", "long", "--parsable").stdout.strip()
    assert again not in ("", job)
    wait_until(lambda: run.role(1, "trainer").exists(), "the second attempt")
    assert slime("cancel", "long", "--json").stdout == json.dumps({"run_dir": str(run.path), "id": again, "state": "CANCELLED"}) + "\n"


def test_a_supervisor_that_is_killed_leaves_a_failed_run_that_can_be_resumed(slime, make_run):
    run = make_run("killed", "serve")
    pid = int(slime("resume", "killed", "--parsable").stdout.strip().removeprefix("local-"))
    wait_until(run.lock.exists, "the lock")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the supervisor's end")
    assert f"local-{pid} FAILED" in slime("status", "killed").stdout
    assert slime("resume", "killed").exit_code == 0


def test_following_the_logs_ends_with_the_job(slime, make_run):
    make_run("good", "work")
    slime("resume", "good")
    lines = slime("logs", "good", "--follow").stdout.splitlines()
    assert lines.count("supervisor: COMPLETED") == 1
    assert lines.count("engines-0: toy engines 0") <= 1


def _heed_interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(words, shown):
    """Ctrl-C on a command of its own process once `shown` is on stderr; its exit status, and the rest of stderr."""
    # Where the tests run in the background of a script, Ctrl-C is ignored, and a child would ignore it too.
    command = subprocess.Popen(
        [sys.executable, "-m", "slime_hpc.cli.main", *words], stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    )
    assert command.stderr is not None
    assert shown in command.stderr.readline()
    time.sleep(1)
    command.send_signal(signal.SIGINT)
    _, rest = command.communicate(timeout=60)
    return command.returncode, rest


def test_ctrl_c_stops_the_waiting_and_not_the_job(slime, make_run):
    run = make_run("long", "serve")
    # The first line that follows the start of the job.
    run.metrics.write_text(json.dumps({"kind": "checkpoint", "step": 3, "attempt": 0, "seconds": 1.0}) + "\n")
    status, rest = interrupt(["resume", "long", "--wait"], "checkpoint of step 3")
    assert status == 1
    assert "The job goes on" in rest
    # On a busy machine the supervisor may still be starting.
    deadline = time.monotonic() + 60
    while (state := json.loads(slime("status", "long", "--json").stdout)["state"]) != "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert state == "RUNNING"


def test_ctrl_c_on_the_demo_cancels_it(slime, slurm):
    slurm.set_state("RUNNING")
    status, _ = interrupt(["demo", "--topology", "test-cluster"], "run folder")
    assert status == 1
    assert slurm.calls()[1:] == ["scancel 4242"]
