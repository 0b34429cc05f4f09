"""`slime-hpc submit`: from an experiment to a job."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slime_hpc.cli.arguments import Asked, ask, experiment_argument, json_option, run_id_option, settings_options
from slime_hpc.cli.follow import follow
from slime_hpc.errors import RunError
from slime_hpc.launch import job
from slime_hpc.launch.lock import require_free
from slime_hpc.launch.new_run import create_run
from slime_hpc.plan.job import JobPlan
from slime_hpc.run_folder import RunFolder

parsable_option = click.option("--parsable", is_flag=True, help="Print the job id, and nothing else.")
wait_option = click.option("--wait", is_flag=True, help="Show the progress, and exit with the run's outcome.")


@click.command()
@experiment_argument
@settings_options
@run_id_option
@wait_option
@parsable_option
@json_option
def submit(
    experiment: tuple[str, ...],
    settings: tuple[str, ...],
    topology: str | None,
    run_id: str,
    wait: bool,
    parsable: bool,
    as_json: bool,
) -> None:
    """Write a run folder and start the job: through sbatch, or on a local topology as processes of this machine.

    EXPERIMENT is a recipe's name, or TOML files, of which the later overlay the earlier.
    """
    asked = ask(experiment, settings, topology)
    start(new_run(asked, run_id), asked.plan, wait=wait, parsable=parsable, as_json=as_json)


def new_run(asked: Asked, run_id: str = "") -> RunFolder:
    """Write the run folder, and say where. Raises RunFolderError when it exists; by whom it is held, when it is."""
    if run_id:
        require_free(RunFolder(Path(asked.experiment.runs) / asked.experiment.name / run_id))
    run = create_run(asked.experiment, asked.topology, asked.plan, run_id=run_id)
    click.echo(f"run folder  {run.path}", err=True)
    return run


def start(run: RunFolder, plan: JobPlan, *, wait: bool, parsable: bool, as_json: bool) -> None:
    """Submit the script of a run folder, print the job id, and follow the job when asked to. Raises RunError when it then ends badly."""
    scheduler = job.scheduler_of(run, plan)
    submission = job.submit(run, scheduler)
    if not as_json:
        click.echo(submission.id if parsable else f"job         {submission.id}")
    try:
        state = follow(run, scheduler) if wait else job.job_state(run, scheduler)
    except KeyboardInterrupt:
        click.echo(f"The job goes on; see `slime-hpc status {run.path}`, or end it with `slime-hpc cancel {run.path}`.", err=True)
        raise
    if as_json:
        click.echo(json.dumps({"run_dir": str(run.path), "id": submission.id, "state": state.state}))
    if wait:
        require_complete(run, state)


def require_complete(run: RunFolder, state: job.JobState) -> None:
    """Raises RunError with the cause when the job did not end well."""
    if state.exit_code:
        raise RunError(
            f"The run ended {state.state}{': ' + state.cause if state.cause else '.'}",
            where=str(run.path),
            fix="see `slime-hpc logs`; `slime-hpc resume` goes on from the newest checkpoint",
        )
