"""Milliseconds of `slime-hpc --help`, beside Python alone and Python with click, which are its floor: in shuffled turns."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

GOAL_MS = 100.0
OURS = "slime-hpc --help"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import click'": ["-c", "import click"],
    OURS: ["-c", "from slime_hpc.cli.main import main; main(['--help'])"],
}


def measure(runs: int) -> dict[str, list[float]]:
    """Milliseconds of every run of every command, after one of each that warms the page cache."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name in random.sample(sorted(COMMANDS), k=len(COMMANDS)):
            start = time.perf_counter()
            subprocess.run([sys.executable, *COMMANDS[name]], capture_output=True, check=True)
            if number:
                taken[name].append(1000 * (time.perf_counter() - start))
    return taken


def report(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Minimum and median of each command, and whether ours is quick enough."""
    rows = {name: {"min_ms": round(min(v), 1), "median_ms": round(statistics.median(v), 1)} for name, v in taken.items()}
    best = rows[OURS]["min_ms"]
    target = {"name": f"{OURS}, minimum, ms", "value": best, "goal": GOAL_MS, "met": best <= GOAL_MS}
    return {"bench": "help", "targets": [target], "rows": rows}


def main() -> None:
    """Run, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 runs instead of 20")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()
    result = report(measure(5 if options.quick else 20))
    if not options.json:
        for name, row in result["rows"].items():
            print(f"{name:26} min {row['min_ms']:6.1f} ms   median {row['median_ms']:6.1f} ms")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
