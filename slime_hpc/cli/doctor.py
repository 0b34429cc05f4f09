"""`slime-hpc doctor`: the preflight of a login node."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import click

from slime_hpc.cli.arguments import json_option
from slime_hpc.site.ask import ask
from slime_hpc.site.check import Check
from slime_hpc.site.machine_checks import machine_checks
from slime_hpc.site.slurm_checks import slurm_checks
from slime_hpc.site.slurm_facts import slurm_facts
from slime_hpc.topology.load import load_topology

FAILED = 3
"""Exit code when no run could succeed."""
_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sacct")


@click.command()
@click.option("--topology", default="local", show_default=True, metavar="NAME|FILE", help="The cluster that runs are meant for.")
@click.option("--runs", default="runs", show_default=True, type=click.Path(path_type=Path), help="Where run folders will lie.")
@json_option
@click.pass_context
def doctor(context: click.Context, topology: str, runs: Path, as_json: bool) -> None:
    """Look at what a run needs of Slurm and of this login node, and say what to do about what is not well.

    Exit code 0, or 3 when a line says fail. GPUs, the fabric and other nodes can be seen within a job only: they are not looked at.
    """
    cluster = load_topology(topology)
    checks: list[Check] = []
    if cluster.scheduler.kind == "slurm":
        missing = tuple(command for command in _COMMANDS if shutil.which(command) is None)
        checks += slurm_checks(slurm_facts(ask), cluster, os.environ, missing=missing)
    checks += machine_checks(cluster, runs.expanduser().absolute(), ask)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    else:
        for check in checks:
            click.echo(f"{check.status:4}  {check.name:22}  {check.what}")
            if check.fix:
                click.echo(f"{'':28}  -> {check.fix}")
    if any(check.status == "fail" for check in checks):
        context.exit(FAILED)
