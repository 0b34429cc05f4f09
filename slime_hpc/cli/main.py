"""The command `slime-hpc`. A command's module is imported when that command runs, so that help is instant on any login node."""

from __future__ import annotations

import importlib
from typing import IO, Any, NamedTuple

import click

from slime_hpc import __version__
from slime_hpc.errors import SlimeError


class Lazy(NamedTuple):
    """Where a command is, and its line in the list of commands."""

    target: str
    help: str


COMMANDS = {
    "demo": Lazy("slime_hpc.cli.demo:demo", "Train a tiny model on this machine, and show how its reward rises."),
    "plan": Lazy("slime_hpc.cli.plan:plan", "Show which node does what; write nothing."),
    "render": Lazy("slime_hpc.cli.render:render", "Write a run folder with the batch script; submit nothing."),
    "submit": Lazy("slime_hpc.cli.submit:submit", "Write a run folder and start the job."),
    "status": Lazy("slime_hpc.cli.status:status", "Show how a run stands."),
    "logs": Lazy("slime_hpc.cli.logs:logs", "Show the logs of a run's roles."),
    "rollouts": Lazy("slime_hpc.cli.rollouts:rollouts", "What a run has generated: list, show, verify, count and export its batches."),
    "export": Lazy("slime_hpc.cli.export:export", "Write a run's weights as a Hugging Face folder."),
    "cancel": Lazy("slime_hpc.cli.cancel:cancel", "End a run's job and wait until it is gone."),
    "resume": Lazy("slime_hpc.cli.resume:resume", "Start a new job that goes on from a run's newest checkpoint."),
    "explain": Lazy("slime_hpc.cli.explain:explain", "Say what a key of the experiment file means."),
    "recipes": Lazy("slime_hpc.cli.recipes:recipes", "The experiments that come with slime-hpc."),
    "topologies": Lazy("slime_hpc.cli.topologies:topologies", "The cluster descriptions that come with slime-hpc, and your own."),
    "doctor": Lazy("slime_hpc.cli.doctor:doctor", "Look at what a run needs of Slurm and of this login node."),
}


class _Shown(click.ClickException):
    """A SlimeError as click shows it: its message alone, and its exit code."""

    def __init__(self, error: SlimeError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]  # click's own way, though its stub calls it a class variable

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"slime-hpc: {self.message}", file=file, err=True)


class LazyGroup(click.Group):
    """Imports a command's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a first use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Import none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Turn an error that tells the user something into its message."""
        try:
            return super().invoke(ctx)
        except SlimeError as error:
            raise _Shown(error) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Reinforcement learning of language models on Slurm clusters, with Megatron-core and SGLang."""


if __name__ == "__main__":
    main()
