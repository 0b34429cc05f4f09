"""The wheel is the whole package: installed alone, it brings its templates, topologies and recipes, and works outside any checkout."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with nothing but the wheel's files."""
    folder = tmp_path_factory.mktemp("site") / "lib"
    run(*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


@pytest.fixture
def outside(installed, tmp_path):
    """Run a command in an empty folder, where the installed package is the only one."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return lambda *command: run(*command, cwd=tmp_path, env=environment)


def test_it_holds_every_file_of_the_package_and_of_its_assets(installed):
    ours = {path.relative_to(ROOT) for path in (ROOT / "slime_hpc").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assets = {Path("slime_hpc/_data") / path.relative_to(ROOT) for kind in ("sbatch", "topologies") for path in (ROOT / kind).iterdir()}
    wheels = {path.relative_to(installed) for path in (installed / "slime_hpc").rglob("*") if path.is_file()}
    assert {path for path in wheels if path.suffix != ".pyc"} == ours | assets


def test_it_says_what_pyproject_says(installed):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (metadata,) = installed.glob("slime_hpc-*.dist-info/METADATA")
    head, _, text = metadata.read_text().partition("\n\n")
    assert text.strip() == (ROOT / "README.md").read_text().strip()
    lines = head.splitlines()
    for line in (f"Version: {project['version']}", f"Requires-Python: {project['requires-python']}", "License-Expression: Apache-2.0"):
        assert line in lines
    assert [line for line in lines if line.startswith("Classifier: ")] == [f"Classifier: {text}" for text in sorted(project["classifiers"])]
    assert (metadata.parent / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_its_assets_are_its_own(outside, installed):
    program = "from slime_hpc import assets; print(*(assets.folder(kind) for kind in ('sbatch', 'topologies', 'recipes')), sep='\\n')"
    below = installed / "slime_hpc"
    assert outside(sys.executable, "-c", program).split() == [
        str(below / "_data" / "sbatch"),
        str(below / "_data" / "topologies"),
        str(below / "recipes"),
    ]


@pytest.mark.parametrize("topology", ["local", "test-cluster"])
def test_its_command_renders_the_demo_outside_any_checkout(outside, installed, tmp_path, topology):
    command = installed / "bin" / "slime-hpc"
    said = json.loads(outside(command, "render", "demo", "--topology", topology, "--json"))
    run_dir = Path(said["run_dir"])
    assert run_dir.parent == tmp_path / "runs" / "demo"
    assert (run_dir / "job.sbatch").read_text().startswith("#!/bin/bash\n")
    experiment = tomllib.loads((run_dir / "experiment.toml").read_text())
    assert experiment["model"]["path"] == str(installed / "slime_hpc" / "recipes" / "demo_model")
    assert str(ROOT) not in (run_dir / "plan.json").read_text()
