"""Parking a run: the supervisor asks for it in one small file of the attempt, the trainer answers in another.

Files, for whoever asks is outside any container and has no network to the roles; of its own attempt each, so that no request outlives it.
"""

from __future__ import annotations

import json

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.run_folder import RunFolder


def ask(run: RunFolder, attempt: int) -> None:
    """Ask the trainer to save the step that it has reached, and to train no further."""
    write_atomic(run.park_request(attempt), "{}")


def asked(run: RunFolder, attempt: int) -> bool:
    """Whether the attempt is to be parked."""
    return run.park_request(attempt).exists()


def answer(run: RunFolder, attempt: int, step: int) -> None:
    """Say that all up to `step` is saved: the attempt may end."""
    write_atomic(run.parked(attempt), json.dumps({"step": step}))


def answered(run: RunFolder, attempt: int) -> int | None:
    """The step that was saved; None while the attempt is not parked."""
    try:
        return int(json.loads(run.parked(attempt).read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        return None
