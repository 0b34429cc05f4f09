"""`slime-hpc topologies`: the cluster descriptions that come with the package, and those of one's own."""

from __future__ import annotations

import json

import click

from slime_hpc import assets
from slime_hpc.cli.arguments import json_option
from slime_hpc.topology.load import load_topology


@click.group()
def topologies() -> None:
    """The cluster descriptions that come with slime-hpc, and your own."""


@topologies.command("list")
@json_option
def list_topologies(as_json: bool) -> None:
    """List them."""
    found = [load_topology(name) for name in assets.available("topologies")]
    if as_json:
        click.echo(json.dumps([topology.model_dump(mode="json") for topology in found]))
        return
    for topology in found:
        click.echo(f"{topology.name:20}  {topology.nodes} x {topology.node.gpus} {topology.accelerator:4}  {topology.description}")


@topologies.command("show")
@click.argument("name")
def show_topology(name: str) -> None:
    """Print the file of NAME, to copy and change."""
    click.echo(assets.find("topologies", name, where="NAME").read_text(encoding="utf-8"), nl=False)


@topologies.command("check")
@click.argument("name", metavar="NAME|FILE")
@json_option
def check_topology(name: str, as_json: bool) -> None:
    """Check a file: what is wrong or contradicts itself ends this with exit code 2; what it leaves open is listed. Asks no machine.

    `slime-hpc doctor` compares a topology with the cluster itself.
    """
    from slime_hpc.topology.advice import advise

    topology = load_topology(name)
    advice = list(advise(topology))
    if as_json:
        click.echo(json.dumps({"name": topology.name, "advice": [entry._asdict() for entry in advice]}))
        return
    for entry in advice:
        click.echo(f"{entry.key} {entry.what}\n  fix:   {entry.fix}")
    click.echo(f"{topology.name} is sound{'' if not advice else f', with {len(advice)} to look at'}")


@topologies.command("detect")
@click.option("--partition", help="The partition to describe; default: one with GPUs.")
def detect_topology(partition: str | None) -> None:
    """Print a draft for the cluster of this login node, from what Slurm and this machine say. Writes nothing.

    Run within a job on a compute node, it also knows the memory of a GPU and the fabric's interface.
    """
    from slime_hpc.site.ask import ask
    from slime_hpc.site.draft import draft
    from slime_hpc.site.machine_facts import machine_facts
    from slime_hpc.site.slurm_facts import slurm_facts

    click.echo(draft(slurm_facts(ask), machine_facts(ask), partition=partition), nl=False)
