"""Runs `tests.trainer.checks` on as many processes as a world has, and hands back their figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT_S = 600


def launch(folder: Path, world: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """Figures by name, of all checks or of the named cases."""
    commands = [[sys.executable, "-m", "tests.trainer.checks", str(folder), str(rank), str(world), *names] for rank in range(world)]
    logs = [folder / f"log-{rank}" for rank in range(world)]
    ranks = [subprocess.Popen(c, stdout=log.open("wb"), stderr=subprocess.STDOUT) for c, log in zip(commands, logs, strict=True)]
    try:
        for process in ranks:
            process.wait(_TIMEOUT_S)
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks), "\n".join(log.read_text()[-3000:] for log in logs)
    value: dict[str, Any] = json.loads((folder / f"world-{world}.json").read_text())
    return value
