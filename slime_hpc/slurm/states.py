"""Slurm's job states (squeue(1), "JOB STATE CODES"), long form."""

from __future__ import annotations

ENDED_WELL = frozenset({"COMPLETED"})
ENDED_BADLY = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
ENDED = ENDED_WELL | ENDED_BADLY
UNKNOWN = "UNKNOWN"


def normalize(text: str) -> str:
    """A state as Slurm prints it ("CANCELLED by 1000", "CANCELLED+", "RUNNING") in its long form alone."""
    words = text.strip().split()
    return words[0].rstrip("+").upper() if words else UNKNOWN
