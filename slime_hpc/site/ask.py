"""Asks a command of this machine; every answer may be missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from slime_hpc.slurm.client import clean_environment

Ask = Callable[..., str | None]
"""Called with the words of a command: its standard output, or None when there is no such command, it fails, or it hangs."""
TIMEOUT_S = 15.0


def ask(*command: str) -> str | None:
    """Ask for real."""
    environment = {**clean_environment(os.environ), "LC_ALL": "C"}
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
