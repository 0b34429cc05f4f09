"""`slime-hpc recipes`: the experiments that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slime_hpc import assets
from slime_hpc.cli.arguments import experiment_argument, json_option, settings_option
from slime_hpc.config import names
from slime_hpc.config.load import load_experiment
from slime_hpc.config.schema import Experiment


@click.group()
def recipes() -> None:
    """The experiments that come with slime-hpc."""


@recipes.command("list")
@json_option
def list_recipes(as_json: bool) -> None:
    """List them."""
    found = {name: _description(name) for name in assets.available("recipes")}
    if as_json:
        click.echo(json.dumps([{"name": name, "description": text} for name, text in found.items()]))
        return
    for name, text in found.items():
        click.echo(f"{name:20}  {text}")


@recipes.command("show")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Print the file of NAME, to copy and change."""
    click.echo(assets.find("recipes", name, where="NAME").read_text(encoding="utf-8"), nl=False)


@recipes.command("prepare")
@experiment_argument
@settings_option
def prepare_recipe(experiment: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Make the model folder that EXPERIMENT needs, when it is missing (its key model.prepare)."""
    loaded = load_experiment(experiment, settings)
    prepare(loaded)
    click.echo(loaded.model.path)


def prepare(experiment: Experiment) -> None:
    """Make the model folder, when the experiment says how. Raises ConfigError, DataError."""
    if experiment.model.prepare is not None:
        names.load(experiment.model.prepare, where="model.prepare")(Path(experiment.model.path))


def _description(name: str) -> str:
    """A recipe opens with a comment of one line that says what it is."""
    first, _, _ = assets.find("recipes", name, where="NAME").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
