"""What tests of the command line share: the command in a folder of its own, a Slurm that only takes notes, and a run's files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from finished_run import write_run

from slime_hpc.cli.main import main
from slime_hpc.run_folder import RunFolder

SBATCH = """#!/bin/bash
echo "sbatch $*" >> {root}/calls
run=$(dirname "${{@: -1}}")
[ -e {root}/refuse ] && {{ echo "sbatch: error: Invalid account" >&2; exit 1; }}
cp -r {root}/leaves/. "$run"
echo 4242
"""
SQUEUE = "#!/bin/bash\ncat {root}/state\n"
SCANCEL = '#!/bin/bash\necho "scancel $*" >> {root}/calls\necho CANCELLED > {root}/state\n'
SILENT = "#!/bin/bash\nexit 1\n"


@dataclass(frozen=True)
class NotingSlurm:
    """Commands on PATH that write down how they were called. Job 4242 has the state in `state`; sbatch copies `leaves` into the run."""

    root: Path

    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def set_state(self, state: str) -> None:
        (self.root / "state").write_text(f"{state}\n")

    def refuse(self) -> None:
        (self.root / "refuse").touch()

    @property
    def leaves(self) -> RunFolder:
        return RunFolder(self.root / "leaves")


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    root = tmp_path_factory.mktemp("slurm")
    (root / "leaves").mkdir()
    (root / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "scontrol": SILENT, "sacct": SILENT}.items():
        path = root / "bin" / name
        path.write_text(text.format(root=root))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    slurm = NotingSlurm(root)
    slurm.set_state("PENDING")
    return slurm


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def slime(here):
    """Run `slime-hpc WORDS` in this process, in an empty folder."""
    return lambda *words: CliRunner().invoke(main, list(words), prog_name="slime-hpc")


@pytest.fixture
def finished(slurm):
    """Slurm, with a job that is done as soon as it is submitted: 12 steps, COMPLETED."""
    write_run(slurm.leaves, steps=12)
    slurm.set_state("COMPLETED")
    return slurm
