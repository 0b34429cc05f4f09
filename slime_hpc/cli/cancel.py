"""`slime-hpc cancel`: end a run's job."""

from __future__ import annotations

import json

import click

from slime_hpc.cli.arguments import find_run, json_option, run_argument, runs_option
from slime_hpc.launch import job
from slime_hpc.launch.saved import load_saved


@click.command()
@run_argument
@runs_option
@json_option
def cancel(run: str, runs: str, as_json: bool) -> None:
    """End the job of a run, and wait until it is gone. What is sealed and checkpointed stays; `resume` goes on from it.

    RUN is a run folder, a run's id, or an experiment's name: its newest run.
    """
    folder = find_run(run, runs)
    _, _, plan = load_saved(folder)
    state = job.cancel(folder, job.scheduler_of(folder, plan))
    if as_json:
        click.echo(json.dumps({"run_dir": str(folder.path), "id": state.id, "state": state.state}))
        return
    click.echo(f"job {state.id}: {state.state}")
