"""Slurm's time limits as numbers (sbatch(1), --time)."""

from __future__ import annotations


def seconds(limit: str) -> int:
    """Of "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours", "days-hours:minutes" or "days-hours:minutes:seconds"."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, (minutes, secs) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs
