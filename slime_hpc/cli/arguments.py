"""How words of the command line become an experiment with its plan, or a run folder; shared by the commands that take them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from slime_hpc.config.load import load_experiment
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import RunFolderError
from slime_hpc.plan.job import JobPlan
from slime_hpc.plan.plan_job import check_prompt_files, plan_job
from slime_hpc.run_folder import RunFolder
from slime_hpc.topology.load import load_topology
from slime_hpc.topology.schema import Topology

F = TypeVar("F", bound=Callable[..., Any])

experiment_argument = click.argument("experiment", nargs=-1, required=True, metavar="EXPERIMENT...")
"""A recipe's name, or files, of which the later overlay the earlier."""
run_argument = click.argument("run", metavar="RUN")
"""A run folder, the id of a run, or the name of an experiment: its newest run."""
runs_option = click.option("--runs", default="runs", show_default=True, help="Where RUN is looked for when it is not a path.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def _checked_id(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """A run's id is one folder's name: with a slash in it, the folder would lie elsewhere."""
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise click.BadParameter(f"{value!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit.")
    return value


run_id_option = click.option("--run-id", default="", callback=_checked_id, help="Name of the new run folder; default: the time.")
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one key, e.g. trainer.nodes=2; repeatable."
)


def settings_options(command: F) -> F:
    """--set and --topology."""
    command = click.option(
        "--topology", metavar="NAME|FILE", help="The cluster; default: the experiment's key `topology`, which is 'local'."
    )(command)
    return settings_option(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for, checked."""

    experiment: Experiment
    topology: Topology
    plan: JobPlan


def ask(experiment: Sequence[str], settings: Sequence[str], topology: str | None) -> Asked:
    """Load, check and plan; reads files only. Raises UserError."""
    if topology is not None:
        settings = [*settings, f"topology={json.dumps(topology)}"]
    loaded = load_experiment(experiment, settings)
    cluster = load_topology(loaded.topology)
    plan = plan_job(loaded, cluster)
    check_prompt_files(loaded)
    return Asked(experiment=loaded, topology=cluster, plan=plan)


def find_run(run: str, runs: str) -> RunFolder:
    """The run folder that a word means. Raises RunFolderError."""
    path = Path(run).expanduser()
    matches = [path] if _is_run(path) else sorted(filter(_is_run, [*Path(runs).glob(f"*/{run}"), *Path(runs, run).glob("*")]))
    if not matches:
        known = sorted((path for path in Path(runs).glob("*/*") if _is_run(path)), key=lambda path: path.name)
        there = f"the newest: {', '.join(str(path) for path in known[-3:])}" if known else f"there are none in {Path(runs).absolute()}"
        raise RunFolderError(
            f"There is no run {run!r}.", where="RUN", fix=f"give a run folder, a run's id, or an experiment's name; {there}"
        )
    return RunFolder(matches[-1].absolute())


def _is_run(path: Path) -> bool:
    return RunFolder(path).plan.is_file()
