"""The supervisor: starts one step a role on the first node, watches them, and ends the job with a one-line cause.

It runs on the host, outside any container, and never computes: `python -m slime_hpc.launch.supervisor RUN_FOLDER`.
Waits of the roles are bounded by themselves; the supervisor bounds a run that makes no progress at all. A role that fails is started
again while recovery.py allows it; the others stay up. Told that the time limit is near,
it has the run parked (parking.py), and puts the job back into the queue (requeue.py).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from slime_hpc.config.schema import Experiment, Failure
from slime_hpc.control.endpoint import unpublish, write_atomic
from slime_hpc.errors import SlimeError
from slime_hpc.launch import lock
from slime_hpc.launch.cause import find_cause, forget_causes, is_user_error
from slime_hpc.launch.parking import Parking, patience_s
from slime_hpc.launch.payload import STOPPED_STATUS, RolePayload
from slime_hpc.launch.recovery import Recovery
from slime_hpc.launch.requeue import requeue, requeues
from slime_hpc.launch.roles import ROLES
from slime_hpc.launch.saved import load_saved
from slime_hpc.launch.step import LocalLauncher, SrunLauncher, Step, StepLauncher
from slime_hpc.launch.stop import StopRequested, raise_if_told, raise_on_signal
from slime_hpc.launch.submissions import next_attempt
from slime_hpc.launch.verdict import State, Verdict, judge
from slime_hpc.observe import events
from slime_hpc.plan.job import JobPlan, RolePlan
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.hostlist import expand
from slime_hpc.topology.schema import Topology

POLL_S = 0.2
GRACE_S = 10.0
"""Time that tasks have between SIGTERM and SIGKILL."""
ENDING_S = 3 * GRACE_S
"""Time kept for ending all steps, of what there is before the time limit: until SIGKILL, after it, and to spare."""
CANCEL_LAG_S = 3.0
"""Slurm signals the steps before the batch shell."""


class Supervisor:
    """One attempt of a run."""

    def __init__(
        self,
        run: RunFolder,
        plan: JobPlan,
        launcher: StepLauncher,
        *,
        failure: Failure,
        job_id: str,
        grace_s: float,
        roles: Mapping[str, str] = ROLES,
    ) -> None:
        self._run = run
        self._plan = plan
        self._launcher = launcher
        self._job_id = job_id
        self._roles = roles
        self._stall_s = failure.stall_s
        self._recovery = Recovery(failure)
        self._attempt = next_attempt(run)
        self._parking = Parking(run, self._attempt, patience_s=patience_s(grace_s, ENDING_S))
        self._steps: dict[str, Step] = {}
        self._start = time.time()

    def supervise(self) -> State:
        """Run the attempt to its end; how it ended."""
        self._parking.listen()
        self._run.attempt(self._attempt).mkdir(parents=True, mode=0o700)
        self._write_outcome("RUNNING", "")
        state: State = "FAILED"
        cause = "the supervisor itself failed"
        try:
            self._start_steps()
            state, cause = self._watch()
        except StopRequested as stop:
            state, cause = "CANCELLED", f"told to end by {stop}"
        except Exception as error:
            cause = error.cause if isinstance(error, SlimeError) else f"{type(error).__name__}: {error}"
            raise
        finally:
            self._end_steps()
            self._write_outcome(state, cause)
            print(f"{state}{': ' + cause if cause else ''}", flush=True)
        return state

    def _start_steps(self) -> None:
        for role in self._plan.roles:
            self._start_step(role)

    def _start_step(self, role: RolePlan) -> None:
        payload = RolePayload(run=self._run.path, role=role.name, attempt=self._attempt, main=self._roles[role.kind])
        self._steps[role.name] = self._launcher.start(role, payload)

    def _watch(self) -> tuple[State, str]:
        next_heartbeat = 0.0
        while True:
            raise_if_told()
            if time.monotonic() >= next_heartbeat:
                lock.renew(self._run, self._job_id)
                next_heartbeat = time.monotonic() + lock.HEARTBEAT_S
                if self._idle_s() > self._stall_s:
                    return "FAILED", f"nothing has happened for {self._stall_s:.0f} s (failure.stall_s), since {self._phase()}"
            exits = {name: status for name, step in self._steps.items() if (status := step.poll()) is not None}
            verdict = judge(self._plan, exits)
            if verdict.state == "FAILED":
                cause = self._cause(verdict, exits)
                if not self._restarted(self._plan.role(verdict.role), cause):
                    return "FAILED", cause
                continue
            if verdict.state != "RUNNING" and not self._parking.answered():
                return verdict.state, ""
            if (parked := self._parking.poll()) is not None:
                return "STOPPED", parked
            time.sleep(POLL_S)

    def _cause(self, verdict: Verdict, exits: Mapping[str, int]) -> str:
        # Peers write their causes a moment earlier or later. A task that was told to end came before our own signal (scancel): await it.
        time.sleep(CANCEL_LAG_S if exits[verdict.role] in (STOPPED_STATUS, -signal.SIGTERM) else 2 * POLL_S)
        return find_cause(self._run.attempt(self._attempt), verdict.role, exits[verdict.role])

    def _restarted(self, role: RolePlan, cause: str) -> bool:
        """Start the step of a role again, if that may be."""
        user_error = is_user_error(self._run.attempt(self._attempt), role.name)
        trained = [event["step"] for event in events.read(self._run.metrics) if event["kind"] == "train"]
        number = self._recovery.restart(role, user_error=user_error, trained=len(trained))
        if not number:
            return False
        step = self._steps[role.name]
        step.signal(signal.SIGKILL)
        self._wait(GRACE_S, [step])
        forget_causes(self._run.attempt(self._attempt), role.name)
        unpublish(self._run, self._attempt, role.name)
        told = {"role": role.name, "restart": number, "of": self._recovery.budget[role.kind], "cause": cause}
        print(f"restart {number} of {role.name}: {cause}", flush=True)
        last = max(trained, default=0)
        events.append(self._run.metrics, {"kind": "restart", "step": last, "attempt": self._attempt, "time": time.time(), **told})
        self._start_step(role)
        return True

    def _phase(self) -> str:
        try:
            status = json.loads(self._run.status.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return "the start"
        return f"{status['phase']!r} of step {status['step']}"

    def _idle_s(self) -> float:
        changed = [path.stat().st_mtime for path in (self._run.status, self._run.metrics) if path.exists()]
        return time.time() - max([self._start, *changed])

    def _end_steps(self) -> None:
        self._signal_all(signal.SIGTERM)
        self._wait(GRACE_S, self._steps.values())
        self._signal_all(signal.SIGKILL)
        self._wait(GRACE_S, self._steps.values())

    def _signal_all(self, number: int) -> None:
        for step in self._steps.values():
            step.signal(number)

    def _wait(self, timeout_s: float, steps: Collection[Step]) -> None:
        """For the ends of steps: one that has failed may still have tasks, so its processes count, not its status."""
        deadline = time.monotonic() + timeout_s
        while any(step.running() for step in steps) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _write_outcome(self, state: str, cause: str) -> None:
        value = {"state": state, "cause": cause, "attempt": self._attempt, "time": time.time(), "seconds": time.time() - self._start}
        for path in (self._run.attempt_outcome(self._attempt), self._run.outcome):
            write_atomic(path, json.dumps(value))


def make_launcher(run: RunFolder, experiment: Experiment, topology: Topology, plan: JobPlan) -> tuple[StepLauncher, str]:
    """Launcher and job id of the environment this process runs in."""
    if plan.scheduler == "local":
        return LocalLauncher(run), "local"
    job_id = os.environ["SLURM_JOB_ID"]
    hostnames = expand(os.environ.get("SLURM_JOB_NODELIST", socket.gethostname()))
    return SrunLauncher(run, experiment, topology, job_id=job_id, hostnames=hostnames), job_id


def main(folder: str, *, roles: Mapping[str, str] = ROLES) -> int:
    """Supervise the run of a folder; exit status 2 when another job holds it, 0 when it is complete, now or already."""
    raise_on_signal()
    run = RunFolder(Path(folder))
    try:
        experiment, topology, plan = load_saved(run)
        launcher, job_id = make_launcher(run, experiment, topology, plan)
        lock.take(run, job_id)
    except SlimeError as error:
        print(f"slime-hpc: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    try:
        if is_complete(run):
            print("COMPLETED already", flush=True)
            return 0
        grace_s = topology.scheduler.grace_s
        supervisor = Supervisor(run, plan, launcher, failure=experiment.failure, job_id=job_id, grace_s=grace_s, roles=roles)
        state = supervisor.supervise()
    finally:
        lock.release(run)
    if requeues(state, int(os.environ.get("SLURM_RESTART_COUNT", "0")), experiment.slurm, topology.scheduler):
        requeue(job_id)
    return 0 if state == "COMPLETED" else 1


def is_complete(run: RunFolder) -> bool:
    """Whether an attempt has ended well: Slurm may start a job again that has done all its work."""
    return run.outcome.exists() and json.loads(run.outcome.read_text(encoding="utf-8"))["state"] == "COMPLETED"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
