"""Makes a run folder: everything that was asked, resolved, before anything runs."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
import time
from pathlib import Path

from slime_hpc.config.dump import to_toml
from slime_hpc.config.schema import Experiment
from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import RunFolderError
from slime_hpc.plan.job import JobPlan
from slime_hpc.render.sbatch import render_sbatch
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.schema import Topology


def new_run_id() -> str:
    """UTC time, and four random characters for runs of the same second."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def create_run(experiment: Experiment, topology: Topology, plan: JobPlan, *, run_id: str = "") -> RunFolder:
    """Write experiment, topology, plan, script and token below `runs`; on any error nothing stays. Raises RunFolderError."""
    run_id = run_id or new_run_id()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", run_id):
        raise RunFolderError(f"{run_id!r} cannot name a run.", where="--run-id", fix="letters, digits and . _ -, at most 64")
    run = RunFolder(Path(experiment.runs) / experiment.name / run_id)
    script = render_sbatch(plan, experiment, topology, run=run, python=sys.executable)
    try:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.path.mkdir(mode=0o700)
    except FileExistsError as error:
        raise RunFolderError(
            f"{run.path} exists already.", where="--run-id", fix="choose another id, or `slime-hpc resume` that run"
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"Cannot make {run.path}: {error.strerror}.", where="runs", fix="choose a folder that you may write to"
        ) from error
    try:
        write_atomic(run.experiment, to_toml(experiment))
        write_atomic(run.topology, to_toml(topology))
        write_atomic(run.plan, json.dumps(plan.to_json(), indent=1))
        write_atomic(run.script, script, mode=0o700)
        write_atomic(run.token, secrets.token_hex(32))
        # sbatch does not make the folder of --output; a job without it dies silently.
        run.attempts.mkdir(mode=0o700)
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run
