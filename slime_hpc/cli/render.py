"""`slime-hpc render`: the dry run."""

from __future__ import annotations

import json

import click

from slime_hpc.cli.arguments import ask, experiment_argument, json_option, run_id_option, settings_options
from slime_hpc.launch.new_run import create_run


@click.command()
@experiment_argument
@settings_options
@run_id_option
@json_option
def render(experiment: tuple[str, ...], settings: tuple[str, ...], topology: str | None, run_id: str, as_json: bool) -> None:
    """Write a run folder: batch script, resolved experiment, topology, plan. Submits nothing, and needs no Slurm.

    EXPERIMENT is a recipe's name, or TOML files, of which the later overlay the earlier.
    """
    asked = ask(experiment, settings, topology)
    run = create_run(asked.experiment, asked.topology, asked.plan, run_id=run_id)
    if as_json:
        click.echo(json.dumps({"run_dir": str(run.path), "script": str(run.script)}))
        return
    click.echo(f"run folder  {run.path}")
    click.echo(f"script      {run.script}")
    click.echo(f"start it    slime-hpc resume {run.path}")
