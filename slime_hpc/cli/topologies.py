"""`slime-hpc topologies`: the cluster descriptions that come with the package."""

from __future__ import annotations

import json

import click

from slime_hpc import assets
from slime_hpc.cli.arguments import json_option
from slime_hpc.topology.load import load_topology


@click.group()
def topologies() -> None:
    """The cluster descriptions that come with slime-hpc."""


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
