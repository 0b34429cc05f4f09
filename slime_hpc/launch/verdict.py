"""What the ends of roles mean for the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slime_hpc.plan.job import JobPlan

State = Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED", "STOPPED"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job stands."""

    state: State
    role: str = ""
    """The role that decided it, when it failed."""


def judge(plan: JobPlan, exits: Mapping[str, int]) -> Verdict:
    """`exits`: status of every role that has ended.

    The job is complete when controller and trainer have ended well. Router and engines serve: their end before that is a failure,
    whatever their status. The controller's failure counts before the trainer's, which it may have caused, only by order of the plan.
    """
    for role in plan.roles:
        status = exits.get(role.name)
        if status is not None and (status != 0 or role.kind in ("router", "engines")) and not _complete(plan, exits):
            return Verdict("FAILED", role.name)
    return Verdict("COMPLETED") if _complete(plan, exits) else Verdict("RUNNING")


def _complete(plan: JobPlan, exits: Mapping[str, int]) -> bool:
    return all(exits.get(role.name) == 0 for role in plan.roles if role.kind in ("controller", "trainer"))
