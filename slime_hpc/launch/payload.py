"""What submitit runs in every task of a step: find out who this task is, and call its role.

A plain value that names files and a role; it holds no code, so a queued job runs the package that is installed when it starts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from slime_hpc.config import names
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import SlimeError, UserError
from slime_hpc.launch.network import own_address
from slime_hpc.launch.saved import load_saved
from slime_hpc.launch.stop import StopRequested, raise_on_signal
from slime_hpc.run_folder import RunFolder

STOPPED_STATUS = 143
"""Exit status of a task that was told to end: 128 + SIGTERM, as a shell reports it."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class RolePayload:
    """One role of one attempt of a run."""

    run: Path
    role: str
    attempt: int
    main: str
    """"module:function" of the role."""

    def __call__(self) -> None:
        """Run the role in this task; leaves `cause-<rank>.json` beside its logs when it fails."""
        import submitit

        raise_on_signal()
        environment = submitit.JobEnvironment()
        rank, local_rank = environment.global_rank, environment.local_rank
        try:
            context = self._context(rank, local_rank)
            for name in _THREADS:
                os.environ.setdefault(name, str(context.role.cpus_per_task))
            # Waiting threads that spin take the core from those they wait for, wherever roles share cores: 24 us became 6 ms.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            names.load(self.main, where=f"role {self.role}")(context)
        except StopRequested as stop:
            print(f"{self.role} rank {rank}: ended on {stop}", flush=True)
            # Not a success: submitit would record one if this returned.
            raise SystemExit(STOPPED_STATUS) from None
        except BaseException as error:
            self._leave_cause(rank, error)
            raise

    def _context(self, rank: int, local_rank: int) -> RoleContext:
        run = RunFolder(self.run)
        experiment, topology, plan = load_saved(run)
        os.environ.update(topology.environment)
        return RoleContext(
            run=run, experiment=experiment, topology=topology, plan=plan, role=plan.role(self.role), attempt=self.attempt,
            rank=rank, local_rank=local_rank, address=own_address(topology),
        )  # fmt: skip

    def _leave_cause(self, rank: int, error: BaseException) -> None:
        cause = error.cause if isinstance(error, SlimeError) else f"{type(error).__name__}: {error}"
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        value = {
            "role": self.role, "rank": rank, "node": node, "cause": " ".join(cause.split()),
            "user_error": isinstance(error, UserError), "time": time.time(),
        }  # fmt: skip
        write_atomic(RunFolder(self.run).role(self.attempt, self.role) / f"cause-{rank}.json", json.dumps(value))
