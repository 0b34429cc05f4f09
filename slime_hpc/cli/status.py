"""`slime-hpc status`: how a run stands."""

from __future__ import annotations

import json
from typing import Any

import click

from slime_hpc.cli.arguments import find_run, json_option, run_argument, runs_option
from slime_hpc.cli.follow import phase, read_status
from slime_hpc.cli.narrate import step_line
from slime_hpc.launch import job
from slime_hpc.launch.saved import load_saved
from slime_hpc.observe import events
from slime_hpc.observe.report import StepReport, report_steps


@click.command()
@run_argument
@runs_option
@json_option
def status(run: str, runs: str, as_json: bool) -> None:
    """Show the job's state, what the run does now, and its last finished step.

    RUN is a run folder, a run's id, or an experiment's name: its newest run.
    """
    folder = find_run(run, runs)
    experiment, topology, plan = load_saved(folder)
    state = job.job_state(folder, job.scheduler_of(folder, plan))
    now = read_status(folder)
    finished = [report for report in report_steps(events.read(folder.metrics)) if "train" in report.seconds]
    last = finished[-1] if finished else None
    if as_json:
        values = {"run_dir": str(folder.path), "id": state.id, "state": state.state, "cause": state.cause, "steps": experiment.steps}
        click.echo(json.dumps({**values, "status": now, "last": _figures(last) if last else None}))
        return
    click.echo(f"run    {folder.path}")
    click.echo(f"what   {experiment.name} on {topology.name}, nodes: {plan.num_nodes}")
    click.echo(f"job    {state.id} {state.state}" if state.id else "job    none yet")
    if state.cause:
        click.echo(f"cause  {state.cause}")
    if not state.ended and state.id:
        click.echo(f"now    {phase(now, experiment.steps)}")
    if last:
        click.echo(f"last   {step_line(last, experiment.steps)}")


def _figures(last: StepReport) -> dict[str, Any]:
    return {"step": last.step, "reward": last.reward, "tokens_per_s": last.tokens_per_s, "seconds": dict(last.seconds)}
