"""`slime-hpc logs`: the log files of a run's roles."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from slime_hpc.cli.arguments import find_run, run_argument, runs_option
from slime_hpc.cli.follow import POLL_S, JobWatch
from slime_hpc.errors import RunFolderError
from slime_hpc.launch import job
from slime_hpc.launch.saved import load_saved
from slime_hpc.launch.submissions import next_attempt, read_submissions
from slime_hpc.observe.tail import Tail
from slime_hpc.plan.job import JobPlan
from slime_hpc.run_folder import RunFolder
from slime_hpc.slurm.client import Scheduler

SUPERVISOR = "supervisor"
_TASK_LOG = re.compile(r"_(\d+)_log\.(out|err)$")


@click.command()
@run_argument
@runs_option
@click.option("--role", help="One role of the plan, or 'supervisor'; default: all.")
@click.option("--attempt", type=click.IntRange(min=0), help="One (re)start of the job, from 0; default: the newest.")
@click.option("-n", "--lines", "count", default=20, show_default=True, type=click.IntRange(min=0), help="Last lines of each file.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with new lines until the job ends.")
def logs(run: str, runs: str, role: str | None, attempt: int | None, count: int, following: bool) -> None:
    """Show the logs of a run's roles, each line with its role and rank.

    RUN is a run folder, a run's id, or an experiment's name: its newest run.
    """
    folder = find_run(run, runs)
    _, _, plan = load_saved(folder)
    roles = _roles(plan, role)
    tails: dict[Path, Tail] = {}
    _show(folder, roles, attempt, tails, last=count)
    if following:
        _follow(folder, job.scheduler_of(folder, plan), roles, attempt, tails)


def log_files(run: RunFolder, roles: list[str], attempt: int | None) -> dict[Path, str]:
    """The log files that there are, each with its label; `attempt` None means the newest."""
    number = max(0, next_attempt(run) - 1) if attempt is None else attempt
    files: dict[Path, str] = {}
    for role in roles:
        if role == SUPERVISOR:
            files.update(dict.fromkeys(_supervisor_logs(run, attempt), SUPERVISOR))
        for path in sorted(run.role(number, role).glob("*.*")):
            if match := _TASK_LOG.search(path.name):
                files[path] = f"{role}-{match[1]}"
            elif path.name == "srun.log":
                files[path] = f"{role} srun"
    return files


def _roles(plan: JobPlan, role: str | None) -> list[str]:
    known = [SUPERVISOR, *(each.name for each in plan.roles)]
    if role is None:
        return known
    if role not in known:
        raise RunFolderError(f"The run has no role {role!r}.", where="--role", fix=f"there are: {', '.join(known)}")
    return [role]


def _supervisor_logs(run: RunFolder, attempt: int | None) -> list[Path]:
    """The batch log of the job that made the attempt; of a script submitted by hand, all batch logs."""
    made = [submission for submission in read_submissions(run) if attempt is None or submission.attempt <= attempt]
    path = run.attempts / f"{made[-1].id}.log" if made else None
    return [path] if path is not None and path.exists() else sorted(run.attempts.glob("*.log"))


def _show(run: RunFolder, roles: list[str], attempt: int | None, tails: dict[Path, Tail], *, last: int | None) -> None:
    """Print new lines of all files, also of files that are new; `last`: only so many of each."""
    for path, label in log_files(run, roles, attempt).items():
        lines = tails.setdefault(path, Tail(path)).lines()
        for line in lines if last is None else lines[max(0, len(lines) - last) :]:
            click.echo(f"{label}: {line}")


def _follow(run: RunFolder, scheduler: Scheduler, roles: list[str], attempt: int | None, tails: dict[Path, Tail]) -> None:
    watch = JobWatch(run, scheduler)
    while True:
        # Asked before the logs are read: what an ended job wrote is there to be read.
        ended = watch.state().ended
        _show(run, roles, attempt, tails, last=None)
        if ended:
            return
        time.sleep(POLL_S)
