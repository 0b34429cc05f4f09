"""Reads back what was written into a run folder when the run was made."""

from __future__ import annotations

import json

from slime_hpc.config.load import read_toml, validate
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import RunFolderError
from slime_hpc.plan.job import JobPlan
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.schema import Topology


def load_saved(run: RunFolder) -> tuple[Experiment, Topology, JobPlan]:
    """Experiment, topology and plan of a run. Raises RunFolderError when the folder is not a run's."""
    if not run.plan.is_file():
        raise RunFolderError(f"{run.path} is no run folder: it has no plan.json.", where=str(run.path), fix="give a folder below `runs`")
    experiment = validate(Experiment, read_toml(run.experiment), {}, default_origin=str(run.experiment))
    topology = validate(Topology, read_toml(run.topology), {}, default_origin=str(run.topology))
    return experiment, topology, JobPlan.from_json(json.loads(run.plan.read_text(encoding="utf-8")))
