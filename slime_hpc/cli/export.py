"""`slime-hpc export`: a run's weights as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import click

from slime_hpc.cli.arguments import find_run, run_argument, runs_option
from slime_hpc.errors import UserError
from slime_hpc.launch.saved import load_saved


@click.command()
@run_argument
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@runs_option
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; default: the newest complete one.")
@click.option("--file-mib", type=click.IntRange(min=1), default=5120, show_default=True, help="Size of a weight file.")
def export(run: str, out: Path, runs: str, step: int | None, file_mib: int) -> None:
    """Write the weights of a run's checkpoint as the Hugging Face folder OUT, with the configuration and tokenizer of the run's model.

    It runs in one process on the CPU, and needs the memory that the weights take. RUN is a run folder, a run's id, or an experiment's name.
    """
    from rich.progress import Progress

    try:
        from slime_hpc.trainer.export import chosen_checkpoint, to_hugging_face
    except ModuleNotFoundError as error:
        raise UserError(f"Checkpoints are read with the package {error.name}.", fix="use the job's environment or image") from error

    folder = find_run(run, runs)
    experiment, _, _ = load_saved(folder)
    checkpoint = chosen_checkpoint(folder, step)
    with Progress(transient=True) as bar:
        task = bar.add_task(checkpoint.name, total=None)
        to_hugging_face(
            checkpoint, experiment, out, progress=lambda done, total: bar.update(task, completed=done, total=total), file_mib=file_mib
        )
    click.echo(f"{out}: weights of {checkpoint.name}")
