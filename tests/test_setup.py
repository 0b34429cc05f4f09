"""pyproject.toml, the pinned versions and the Makefile agree, and the set-up says clearly what is missing."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    lines = [line for line in (ROOT / "containers" / name).read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.]+", line) for line in lines), lines
    names = [line.partition("==")[0] for line in lines]
    assert len(set(names)) == len(names)
    return set(names)


def names(requirements):
    return {re.match(r"[\w.-]+", text).group().lower().replace("_", "-") for text in requirements} - {"slime-hpc"}


def test_everything_a_cpu_job_needs_is_pinned():
    extras = PROJECT["optional-dependencies"]
    assert names(PROJECT["dependencies"] + extras["job"] + extras["cpu"]) <= pins("cpu.txt")


def test_everything_the_tests_need_is_pinned_once():
    assert names(PROJECT["optional-dependencies"]["test"]) <= pins("test.txt")
    assert not pins("test.txt") & pins("cpu.txt")


def test_the_benchmarks_peer_is_pinned():
    assert names(PROJECT["optional-dependencies"]["bench"]) <= pins("bench.txt")
    assert not pins("bench.txt") & (pins("cpu.txt") | pins("test.txt"))


def test_ci_runs_make_test():
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.fixture
def clone(tmp_path):
    for name in ("Makefile", "pyproject.toml", "containers/cpu.txt", "containers/test.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ('case "$2" in *version_info*) exit 1;; esac', "are for Python 3.11, and ./python is another: make PYTHON=/path/to/python3.11"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "On Debian, as root: apt-get install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_refused_before_anything_is_made(clone, python, message):
    (clone / "python").write_text(f"#!/bin/bash\n{python}\n")
    (clone / "python").chmod(0o755)
    result = subprocess.run(["make", "venv", "PYTHON=./python"], cwd=clone, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (clone / ".venv").exists()


def test_missing_slurm_packages_are_named_to_one_who_may_not_install(tmp_path):
    for name, body in {"dpkg": "[ $2 = munge ]", "id": "echo 1000"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = ROOT / "tests" / "slurm" / "cluster.sh"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROOT": str(tmp_path / "cluster")}
    for command, more in (("install", " shellcheck"), ("up", "")):
        result = subprocess.run([script, command], env=environment, capture_output=True, text=True, timeout=30)
        assert result.returncode == 1
        assert f"apt-get install --no-install-recommends slurmctld slurmd slurm-client iproute2{more}\n" in result.stderr
    assert not (tmp_path / "cluster").exists()
