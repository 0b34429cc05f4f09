"""Which roles are started again after they failed, and how often. Pure.

A role is given up when its budget is spent, when it finds its own input wrong, and when it fails again before anything was trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from slime_hpc.config.schema import Failure
from slime_hpc.plan.job import RolePlan


@dataclass(slots=True)
class _Past:
    restarts: int = 0
    trained: int = -1
    """Steps that had been trained at the last restart."""


class Recovery:
    """The restarts of one attempt."""

    def __init__(self, failure: Failure) -> None:
        # An engine whose server dies is started again by its own task (rollout.engine); this is for the task.
        self.budget = {
            "controller": failure.controller_restarts,
            "router": failure.router_restarts,
            "engines": failure.engine_restarts,
            "trainer": failure.trainer_restarts,
        }
        self._past: dict[str, _Past] = {}

    def restart(self, role: RolePlan, *, user_error: bool, trained: int) -> int:
        """The number of this restart, from 1 on, or 0 when the role is given up. `trained`: steps trained so far, again after a restart."""
        past = self._past.setdefault(role.name, _Past())
        if user_error or past.restarts >= self.budget[role.kind] or trained == past.trained:
            return 0
        past.restarts, past.trained = past.restarts + 1, trained
        return past.restarts
