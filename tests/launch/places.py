"""Runs of toy roles, on this machine and on the Slurm cluster, behind one interface."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

from slime_hpc.config.load import load_experiment
from slime_hpc.launch.new_run import create_run
from slime_hpc.plan.plan_job import plan_job
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm.client import JobId, SlurmCommands
from slime_hpc.slurm.states import ENDED
from slime_hpc.testing.toys import started, write_deeds
from slime_hpc.topology.load import load_topology

# A wait ends with an error, never with the test suite hanging.
END_S = 120.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = END_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def outcome(run: RunFolder) -> dict:
    return json.loads(run.outcome.read_text())


class Job(Protocol):
    def cancel(self) -> None: ...

    def notice(self) -> None:
        """As Slurm does before the time limit."""
        ...

    def wait(self) -> int:
        """Exit status of the supervisor."""
        ...

    def output(self) -> str: ...


class Place(Protocol):
    """Where supervisors run."""

    name: str

    def make_run(self, deeds: dict[str, str], *more: str) -> RunFolder:
        """Two trainer ranks, two engines, controller and router; `more` settings of the experiment."""
        ...

    def start(self, run: RunFolder) -> Job: ...

    def close(self) -> None:
        """Leave nothing running, whatever the test did."""
        ...


class LocalJob:
    def __init__(self, run: RunFolder, **environment: str) -> None:
        self._log = run.attempts / f"local-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "slime_hpc.testing.toys", str(run.path)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})

    def cancel(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def notice(self) -> None:
        self._process.send_signal(signal.SIGUSR2)

    def wait(self) -> int:
        return self._process.wait(END_S)

    def output(self) -> str:
        return self._log.read_text()


class SlurmJob:
    def __init__(self, run: RunFolder) -> None:
        # The very script that slime-hpc renders, with the toys in place of the real roles.
        script = run.script.with_name("toys.sbatch")
        text = run.script.read_text()
        assert "-m slime_hpc.launch.supervisor " in text
        script.write_text(text.replace("-m slime_hpc.launch.supervisor ", "-m slime_hpc.testing.toys "))
        self._slurm = SlurmCommands()
        self._run = run
        self.id: JobId = self._slurm.submit(script)

    def cancel(self) -> None:
        self._slurm.cancel(self.id)

    def notice(self) -> None:
        subprocess.run(["scancel", "--signal=USR2", "--batch", self.id.id], timeout=30, check=True)

    def wait(self) -> int:
        wait_until(lambda: self._slurm.state(self.id) in ENDED, f"end of job {self.id.id}")
        shown = subprocess.run(["scontrol", "show", "job", self.id.id], capture_output=True, text=True, timeout=30, check=True).stdout
        return int(re.search(r" ExitCode=(\d+):", shown).group(1))

    def state(self) -> str:
        return self._slurm.state(self.id)

    def output(self) -> str:
        return (self._run.attempts / f"{self.id.id}.log").read_text()


class LocalPlace:
    name = "local"
    settings = ()

    def __init__(self, runs) -> None:
        self._runs = runs
        self._jobs: list[Job] = []

    def make_run(self, deeds, *more):
        settings = ["trainer.gpus_per_node=2", "rollout.groups=[{engines=2}]", *self.settings, *more, f"runs={json.dumps(str(self._runs))}"]
        experiment = load_experiment(["demo"], settings)
        topology = load_topology(self.name)
        run = create_run(experiment, topology, plan_job(experiment, topology))
        write_deeds(run, deeds)
        return run

    def start(self, run):
        self._jobs.append(self._start(run))
        return self._jobs[-1]

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()
            job.wait()

    def _start(self, run):
        return LocalJob(run)


class SlurmPlace(LocalPlace):
    name = "test-cluster"
    settings = ("trainer.nodes=2", "trainer.gpus_per_node=1", "rollout.groups=[{engines=2,nodes=2}]")

    def _start(self, run):
        return SlurmJob(run)


def await_tasks(run: RunFolder, count: int = 6, attempt: int = 0) -> None:
    wait_until(lambda: run.attempt(attempt).is_dir() and len(started(run, attempt)) == count, f"start of {count} tasks")
