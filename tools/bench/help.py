"""Milliseconds of `slime-hpc --help`, beside Python alone and Python with click: the best and the median of some runs, in turn.

python tools/bench/help.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import click'": ["-c", "import click"],
    "slime-hpc --help": ["-c", "from slime_hpc.cli.main import main; main(['--help'])"],
}


def main(runs: int) -> None:
    """Measure and print."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            taken[name].append(1000 * (time.perf_counter() - start))
    for name, values in taken.items():
        print(f"{name:26} best {min(values):6.1f} ms   median {statistics.median(values):6.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
