"""`slime-hpc explain`: the experiment file's keys."""

from __future__ import annotations

import dataclasses
import json

import click

from slime_hpc.cli.arguments import json_option
from slime_hpc.config.explain import explain as explain_key


@click.command()
@click.argument("key", default="")
@json_option
def explain(key: str, as_json: bool) -> None:
    """Say what KEY of the experiment file means, e.g. trainer.tensor_parallel; without KEY, list the tables."""
    explanation = explain_key(key)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(explanation)))
        return
    click.echo(f"{explanation.key or 'experiment file'}: {explanation.description}")
    if not explanation.keys:
        click.echo(f"  type     {explanation.type}")
        click.echo(f"  default  {explanation.default or 'none: it must be given'}")
        return
    width = max(map(len, explanation.keys))
    for below in explanation.keys:
        click.echo(f"  {below:{width}}  {explain_key(below).description}")
