"""`slime-hpc demo`: the whole loop, on this machine."""

from __future__ import annotations

import json
from typing import Any

import click
from rich import box
from rich.table import Table

from slime_hpc.cli.arguments import ask, json_option, settings_options
from slime_hpc.cli.follow import follow
from slime_hpc.cli.recipes import prepare
from slime_hpc.cli.screen import stdout
from slime_hpc.cli.submit import new_run, require_complete
from slime_hpc.config.load import load_experiment
from slime_hpc.errors import RunError
from slime_hpc.launch import job
from slime_hpc.observe import events
from slime_hpc.observe.report import StepReport, draw_png, draw_terminal, report_steps
from slime_hpc.observe.summary import summarize
from slime_hpc.run_folder import RunFolder

_RECIPE = ("demo",)
_WHAT = {
    "experiment.toml": "what was asked, with every default",
    "job.sbatch": "the batch script",
    "metrics.jsonl": "every number of every step",
    "reward.png": "the plot",
    "batches": "what was trained on, one HDF5 file a step",
    "checkpoints": "the newest training states",
    "attempts": "the logs; see `slime-hpc logs`",
}


@click.command()
@settings_options
@json_option
def demo(settings: tuple[str, ...], topology: str | None, as_json: bool) -> None:
    """Train a tiny model to spell words backward, and show how its reward rises. Needs no GPU, no Slurm and no download.

    A supervised start first plants two habits, to copy a word and to reverse it; RL then selects the one that the verifier rewards.
    """
    prepare(load_experiment(_RECIPE, settings))
    asked = ask(_RECIPE, settings, topology)
    run = new_run(asked)
    scheduler = job.scheduler_of(run, asked.plan)
    job.submit(run, scheduler)
    try:
        state = follow(run, scheduler)
    except KeyboardInterrupt:
        job.cancel(run, scheduler)
        raise
    require_complete(run, state)
    reports = report_steps(events.read(run.metrics))
    try:
        draw_png(reports, run.path / "reward.png")
    except RunError as error:
        click.echo(f"slime-hpc: {error}", err=True)
    summary = summarize(run.path, run.metrics, run.batch_index)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        _show(run, reports, summary)


def _show(run: RunFolder, reports: list[StepReport], summary: dict[str, Any]) -> None:
    console = stdout()
    console.print(_table(reports))
    click.echo(draw_terminal(reports, width=min(100, console.width)))
    click.echo()
    click.echo(f"mean reward         {_number(summary['reward_first'])} in the first steps, {_number(summary['reward_last'])} in the last")
    click.echo(f"held-out pass rate  {_number(summary['heldout_before'])} before, {_number(summary['heldout_after'])} after")
    click.echo(f"log-probs           trainer and engine differ by at most {_small(summary['logprob_abs_diff_max'])}")
    click.echo(f"{summary['steps']} steps, {summary['samples']} samples, {summary['seconds']:.0f} s")
    click.echo()
    click.echo(f"Everything lies in {run.path}:")
    for path in (run.experiment, run.script, run.metrics, run.path / "reward.png", run.batches, run.checkpoints, run.attempts):
        click.echo(f"  {path.name:16}  {_WHAT[path.name]}")


def _table(reports: list[StepReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("step", "reward", "", "loss", "log-prob diff", "tokens/s", "seconds"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for report in reports:
        bar = "#" * round(30 * (report.reward or 0.0))
        speed = "-" if report.tokens_per_s is None else f"{report.tokens_per_s:.0f}"
        numbers = (_number(report.loss), _small(report.logprob_abs_diff_max), speed, f"{sum(report.seconds.values()):.2f}")
        table.add_row(str(report.step), _number(report.reward), bar, *numbers)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
