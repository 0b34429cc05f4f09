"""`slime-hpc plan`: which node does what."""

from __future__ import annotations

import json

import click
from rich import box
from rich.table import Table

from slime_hpc.cli.arguments import ask, experiment_argument, json_option, settings_options
from slime_hpc.cli.screen import stdout
from slime_hpc.plan.job import PORTS_PER_TASK, JobPlan, RolePlan


@click.command()
@experiment_argument
@settings_options
@json_option
def plan(experiment: tuple[str, ...], settings: tuple[str, ...], topology: str | None, as_json: bool) -> None:
    """Show which node does what: roles, ranks, GPUs, ports, memory. Writes nothing.

    EXPERIMENT is a recipe's name, or TOML files, of which the later overlay the earlier.
    """
    asked = ask(experiment, settings, topology)
    if as_json:
        click.echo(json.dumps(asked.plan.to_json()))
        return
    console = stdout()
    nodes = f"{asked.plan.num_nodes} node{'s' if asked.plan.num_nodes > 1 else ''}"
    console.print(f"{asked.plan.name}: {nodes} of {asked.topology.name}, data parallel {asked.plan.data_parallel}")
    console.print(_roles(asked.plan))
    console.print(_memory(asked.plan))


def _roles(plan: JobPlan) -> Table:
    gpu = "GPUs" if plan.accelerator == "cuda" else "processes"
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("role", "nodes", "ranks", f"{gpu} a node", "cores a rank", "memory a node", "ports from"):
        table.add_column(heading, justify="left" if heading in ("role", "nodes") else "right")
    for role in plan.roles:
        sizes = (str(role.num_tasks), _gpus(role), str(role.cpus_per_task), f"{role.memory_gib} GiB")
        table.add_row(role.name, _numbers(role.nodes), *sizes, _ports(role))
    return table


def _memory(plan: JobPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"estimated GiB of one {'GPU' if plan.accelerator == 'cuda' else 'process'}")
    for heading in ("role", "weights", "gradients", "optimizer", "activations", "cache", "sum", "there is"):
        table.add_column(heading, justify="left" if heading == "role" else "right")
    for part in plan.memory:
        sizes = (part.weights_gib, part.gradients_gib, part.optimizer_gib, part.activations_gib, part.cache_gib, part.total_gib)
        table.add_row(part.role, *(f"{size:.3f}" for size in sizes), f"{part.available_gib:.1f}" if part.available_gib else "unknown")
    return table


def _numbers(nodes: tuple[int, ...]) -> str:
    consecutive = nodes == tuple(range(nodes[0], nodes[-1] + 1))
    return f"{nodes[0]}-{nodes[-1]}" if consecutive and len(nodes) > 1 else ", ".join(map(str, nodes))


def _gpus(role: RolePlan) -> str:
    """How many, and which: GPUs of a node are numbered."""
    if role.gpus_per_node == 0:
        return "0"
    return f"{role.gpus_per_node} ({_numbers(tuple(range(role.gpu_first, role.gpu_first + role.gpus_per_node)))})"


def _ports(role: RolePlan) -> str:
    last = role.port_first + (role.tasks_per_node - 1) * PORTS_PER_TASK
    return str(role.port_first) if role.tasks_per_node == 1 else f"{role.port_first}-{last}"
