"""Every benchmark ends with one JSON object of the agreed form; the cheap ones are run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "tools" / "bench"


@pytest.mark.parametrize("name", ["help.py"])
def test_the_last_line_is_the_result(name):
    result = subprocess.run([sys.executable, BENCH / name, "--quick", "--json"], capture_output=True, text=True, timeout=120, check=True)
    value = json.loads(result.stdout.strip().splitlines()[-1])
    assert value["bench"] == name.removesuffix(".py")
    assert value["targets"]
    for target in value["targets"]:
        assert set(target) == {"name", "value", "goal", "met"}


@pytest.mark.parametrize(
    "path", [path for path in sorted(BENCH.glob("*.py")) if not path.stem.endswith("_peer")], ids=lambda path: path.stem
)
def test_every_benchmark_says_what_it_does(path):
    result = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "--quick" in result.stdout
    assert "--json" in result.stdout
