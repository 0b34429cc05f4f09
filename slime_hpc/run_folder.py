"""Where everything of one run lies on the shared file system. Names only: it opens and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run folder (mode 0700)."""

    path: Path

    @property
    def experiment(self) -> Path:
        """The resolved experiment; loads back to the same object."""
        return self.path / "experiment.toml"

    @property
    def topology(self) -> Path:
        """The topology, as it was at submission."""
        return self.path / "topology.toml"

    @property
    def plan(self) -> Path:
        """The job plan."""
        return self.path / "plan.json"

    @property
    def script(self) -> Path:
        """The rendered batch script."""
        return self.path / "job.sbatch"

    @property
    def job(self) -> Path:
        """Job id, cluster and submission time of every submission, newest last."""
        return self.path / "job.json"

    @property
    def control(self) -> Path:
        """Token, endpoints, heartbeats, outcome."""
        return self.path / "control"

    @property
    def token(self) -> Path:
        """Bearer token of every port the run opens (mode 0600)."""
        return self.control / "token"

    @property
    def outcome(self) -> Path:
        """State and one-line cause of the newest attempt."""
        return self.control / "outcome.json"

    @property
    def lock(self) -> Path:
        """Who runs in this folder now: host, pid or job id, heartbeat."""
        return self.control / "lock.json"

    def endpoint(self, attempt: int, role: str) -> Path:
        """Address that a role of one attempt listens on."""
        return self.control / "endpoints" / str(attempt) / f"{role}.json"

    def weight_group(self, head: int) -> Path:
        """Name of the group in which a trainer rank pushes weights, while there is one."""
        return self.control / "weight-groups" / str(head)

    def park_request(self, attempt: int) -> Path:
        """There once an attempt is to be parked."""
        return self.control / "park" / f"{attempt}.json"

    def parked(self, attempt: int) -> Path:
        """The step that an attempt was parked at."""
        return self.control / "parked" / f"{attempt}.json"

    def weights_head(self, attempt: int) -> Path:
        """The newest version of the weights that goes through deltas."""
        return self.control / "weights" / str(attempt) / "head.json"

    def weights_report(self, attempt: int, engine: str) -> Path:
        """Which version an engine's node holds."""
        return self.control / "weights" / str(attempt) / f"{engine}.json"

    @property
    def attempts(self) -> Path:
        """One folder a (re)start of the job, and the batch log of every job."""
        return self.path / "attempts"

    @property
    def status(self) -> Path:
        """What the controller does now; for `slime-hpc status`, which has no network."""
        return self.control / "status.json"

    def attempt(self, attempt: int) -> Path:
        """Logs of one (re)start of the job."""
        return self.attempts / str(attempt)

    def attempt_outcome(self, attempt: int) -> Path:
        """State and one-line cause of one attempt."""
        return self.attempt(attempt) / "outcome.json"

    def role(self, attempt: int, role: str) -> Path:
        """submitit's folder of one role in one attempt: payload, per-rank logs and results."""
        return self.attempt(attempt) / role

    @property
    def batches(self) -> Path:
        """Sealed HDF5 batches."""
        return self.path / "batches"

    def batch(self, step: int) -> Path:
        """The batch of one step."""
        return self.batches / f"step_{step:08d}.h5"

    @property
    def batch_index(self) -> Path:
        """One line per sealed batch, with the prompt source's state after it."""
        return self.batches / "index.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Training state."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Training state after one step."""
        return self.checkpoints / f"step_{step:08d}"

    @property
    def weights(self) -> Path:
        """Weight versions that go through disk."""
        return self.path / "weights"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: warm-start steps, RL steps, evaluations, pushes, checkpoints."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What `slime-hpc demo --json` prints, of the finished run."""
        return self.path / "summary.json"
