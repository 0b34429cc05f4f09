"""`slime-hpc resume`: a further job of a run."""

from __future__ import annotations

import click

from slime_hpc.cli.arguments import find_run, json_option, run_argument, runs_option
from slime_hpc.cli.submit import parsable_option, start, wait_option
from slime_hpc.errors import RunFolderError
from slime_hpc.launch import job
from slime_hpc.launch.saved import load_saved


@click.command()
@run_argument
@runs_option
@wait_option
@parsable_option
@json_option
def resume(run: str, runs: str, wait: bool, parsable: bool, as_json: bool) -> None:
    """Start a new job of a run, which goes on from its newest complete checkpoint; or the first one, of a run only rendered.

    RUN is a run folder, a run's id, or an experiment's name: its newest run.
    """
    folder = find_run(run, runs)
    _, _, plan = load_saved(folder)
    if job.job_state(folder, job.scheduler_of(folder, plan)).state == "COMPLETED":
        raise RunFolderError(f"{folder.path} is complete.", where=str(folder.outcome), fix="submit the experiment again for a new run")
    start(folder, plan, wait=wait, parsable=parsable, as_json=as_json)
