"""Whole runs, each started once for all tests: by the command that a user types, in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder

COMMAND = str(Path(sys.executable).with_name("slime-hpc"))
_RUN_TIMEOUT_S = 2400.0
TWO_TRAINERS = ("--topology", "test-cluster", "--set", "trainer.nodes=2", "--set", "rollout.groups=[{engines = 2, nodes = 2}]")
"""Two trainer ranks on nodes 1 and 2, two engines on nodes 3 and 4."""


@dataclass(frozen=True)
class Run:
    """A run that has ended, and what its command printed."""

    folder: RunFolder
    printed: dict[str, Any]
    log: str

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each step."""
        return [event["reward_mean"] for event in events.by_step(self.folder.metrics, "rollout").values()]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The newest event of a kind for each step."""
        return list(events.by_step(self.folder.metrics, kind).values())


def slime_hpc(*arguments: str, cwd: Path, timeout_s: float = _RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run the command; a failure of it fails the test with all that the run's logs end with."""
    result = subprocess.run([COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    if result.returncode:
        logs = [f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(cwd.glob("runs/*/*/attempts/**/*.err"))]
        said = f"{arguments}: exit {result.returncode}\n{result.stdout[-1500:]}\n{result.stderr[-3000:]}"
        pytest.fail("\n".join([said, *logs]), pytrace=False)
    return result


def finished(result: subprocess.CompletedProcess[str], cwd: Path) -> Run:
    """The run of a command with --json."""
    printed = json.loads(result.stdout.strip().splitlines()[-1])
    return Run(RunFolder(cwd / printed["run_dir"]), printed, result.stderr)


def submit(*arguments: str, cwd: Path) -> Run:
    """Submit, wait, and read what came of it."""
    return finished(slime_hpc("submit", *arguments, "--wait", "--json", cwd=cwd), cwd)


def final_weights(run: Run) -> dict[str, np.ndarray]:
    """All tensors of the last checkpoint, from the files themselves."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader

    step = max(int(marker.parent.name.removeprefix("step_")) for marker in run.folder.checkpoints.glob("step_*/COMPLETE"))
    folder = run.folder.checkpoint(step)
    metadata = FileSystemReader(str(folder)).read_metadata()
    import torch

    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if hasattr(entry, "size") and "optimizer" not in name
    }
    dcp.load(tensors, storage_reader=FileSystemReader(str(folder)), no_dist=True)
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


@pytest.fixture(scope="session")
def local_demo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`slime-hpc demo --json`: what `make demo` runs."""
    cwd = tmp_path_factory.mktemp("local")
    return finished(slime_hpc("demo", "--json", cwd=cwd), cwd)


@pytest.fixture(scope="session")
def tensor_parallel_demo(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demo on the cluster, tensor parallel 2."""
    return submit("demo", *TWO_TRAINERS, "--set", "trainer.tensor_parallel=2", cwd=tmp_path_factory.mktemp("tp2"))


@pytest.fixture(scope="session")
def data_parallel_demo(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demo on the cluster, data parallel 2."""
    return submit("demo", *TWO_TRAINERS, cwd=tmp_path_factory.mktemp("dp2"))


@pytest.fixture(scope="session")
def smollm2(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real pretrained model on the cluster."""
    cwd = tmp_path_factory.mktemp("smollm2")
    slime_hpc("recipes", "prepare", "smollm2-arithmetic", cwd=cwd)
    return submit("smollm2-arithmetic", "--topology", "test-cluster", "--set", "trainer.threads=2", cwd=cwd)
