"""`slime-hpc rollouts`: what a run has generated, from its sealed batches. Reads them; none of its commands changes a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slime_hpc.cli.arguments import find_run, json_option, run_argument, runs_option
from slime_hpc.errors import DataError, UserError
from slime_hpc.run_folder import RunFolder

if TYPE_CHECKING:
    from slime_hpc.data.batch import Batch


@click.group()
def rollouts() -> None:
    """What a run has generated: its sealed batches.

    RUN is a run folder, a run's id, or an experiment's name: its newest run. STEP is a step of it, from 1.
    """


@rollouts.command("ls", short_help="List the batches.")
@run_argument
@runs_option
@json_option
def list_batches(run: str, runs: str, as_json: bool) -> None:
    """List the batches. A batch counts as sealed when its file is whole; `verify` also compares the checksums."""
    _needs_reader()
    from slime_hpc.cli.batch_table import overview, to_json
    from slime_hpc.cli.screen import stdout
    from slime_hpc.store.audit import look

    found = list(look(find_run(run, runs), checksums=False))
    if as_json:
        click.echo(json.dumps([to_json(each) for each in found]))
    else:
        stdout().print(overview(found) if found else "the run has no batch yet")


@rollouts.command("show", short_help="Show samples of one step.")
@run_argument
@click.argument("step", type=click.IntRange(min=1))
@runs_option
@click.option("--group", type=int, help="All answers to one prompt, by its group id; default: the first group.")
@click.option("--sample", type=click.IntRange(min=0), help="One sample, by its place in the batch, from 0.")
@click.option("--tokens", is_flag=True, help="Also each response token: id, log-prob, whether it is trained, advantage.")
@json_option
def show_samples(run: str, step: int, runs: str, group: int | None, sample: int | None, tokens: bool, as_json: bool) -> None:
    """Show samples of one STEP: prompt, response, reward, advantage, finish, weight versions, log-probs.

    Green is better than its siblings, red is worse. The advantage is the mean over the trained tokens, as the trainer computes it, but
    without a KL penalty in the reward. Prompts are decoded with the run's tokenizer; where it cannot be loaded, their token ids are shown.
    """
    _needs_reader()
    if group is not None and sample is not None:
        raise click.UsageError("Give --group or --sample, not both.")
    from slime_hpc.cli.sample_view import draw, to_json
    from slime_hpc.cli.screen import stdout
    from slime_hpc.cli.stored_sample import choose, load_decoder, show
    from slime_hpc.launch.saved import load_saved

    folder = find_run(run, runs)
    batch = _read(folder, step)
    rows = choose(batch, group, sample)
    experiment, _, _ = load_saved(folder)
    decode = load_decoder(experiment)
    shown = show(batch, rows, experiment.algorithm, decode)
    if as_json:
        click.echo(json.dumps([to_json(each, tokens=tokens) for each in shown]))
        return
    for each in shown:
        stdout().print(draw(each, decode=decode, tokens=tokens))


@rollouts.command("verify", short_help="Compare batches with their checksums.")
@run_argument
@runs_option
@json_option
@click.pass_context
def verify_batches(context: click.Context, run: str, runs: str, as_json: bool) -> None:
    """Compare every batch with index.jsonl and its checksum; exit code 1 when one is torn, changed, missing or not in the index."""
    _needs_reader()
    from slime_hpc.store.audit import State, look

    found = list(look(find_run(run, runs), checksums=True))
    bad = [each for each in found if each.state is not State.SEALED]
    if as_json:
        problems = [{"step": each.step, "file": str(each.path), "state": each.state, "why": each.why} for each in bad]
        click.echo(json.dumps({"batches": len(found), "sealed": len(found) - len(bad), "problems": problems}))
    else:
        for each in bad:
            click.echo(f"step {each.step}: {each.state}: {each.why}")
        click.echo(f"{len(found) - len(bad)} of {len(found)} batches are as they were sealed")
    context.exit(1 if bad else 0)


@rollouts.command("stats", short_help="Show lengths and rewards by step.")
@run_argument
@runs_option
@json_option
def show_stats(run: str, runs: str, as_json: bool) -> None:
    """Show lengths in tokens, rewards, their spread and truncation by step, of the batches that can be read."""
    _needs_reader()
    from slime_hpc.cli.batch_table import figures, to_json
    from slime_hpc.cli.screen import stdout
    from slime_hpc.store.audit import look

    found = list(look(find_run(run, runs), checksums=False))
    if as_json:
        click.echo(json.dumps([to_json(each) for each in found if each.summary]))
    else:
        stdout().print(figures(found) if found else "the run has no batch yet")
    for each in found:
        if each.summary is None:
            click.echo(f"step {each.step} is left out: {each.why}", err=True)


@rollouts.command("export", short_help="Write samples into a .jsonl or .parquet file.")
@run_argument
@runs_option
@click.option("--to", "target", required=True, metavar="FILE", help="A .jsonl or .parquet file; one of this name is replaced.")
@click.option("--steps", metavar="A-B", default="", callback=lambda _context, _parameter, value: _steps(value), help="Default: all.")
@json_option
def export_samples(run: str, runs: str, target: str, steps: tuple[int, int] | None, as_json: bool) -> None:
    """Write all samples into one file, one row each. Checksums are compared first; on any error there is no file."""
    _needs_reader()
    from slime_hpc.cli.stored_sample import load_decoder
    from slime_hpc.launch.saved import load_saved
    from slime_hpc.store import hdf5
    from slime_hpc.store.export import export
    from slime_hpc.store.journal import Journal

    folder = find_run(run, runs)
    every = Journal(folder).entries()
    entries = [entry for entry in every if steps is None or steps[0] <= entry.step <= steps[1]]
    if not entries:
        there = f"there are steps {every[0].step} to {every[-1].step}" if every else "the run has sealed no batch yet"
        raise DataError(f"{folder.batch_index} names none of the steps.", where="--steps", fix=there)

    def batches() -> Iterable[Batch]:
        for entry in entries:
            path = folder.batches / entry.file
            hdf5.verify(path, entry.sha256)
            yield hdf5.read(path)

    path = Path(target).expanduser()
    count = export(batches(), path, decode=load_decoder(load_saved(folder)[0]))
    size = path.stat().st_size
    if as_json:
        click.echo(json.dumps({"file": str(path), "batches": len(entries), "samples": count, "bytes": size}))
    else:
        click.echo(f"{path}: {count} samples of {len(entries)} batches, {size} bytes")


def _needs_reader() -> None:
    try:
        import h5py  # noqa: F401
        import numpy  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"Batches are read with the package {error.name}.", fix="pip install h5py, or use the job's environment") from error


def _read(run: RunFolder, step: int) -> Batch:
    from slime_hpc.store import hdf5

    path = run.batch(step)
    if not path.is_file():
        raise DataError(f"The run has no batch of step {step}.", where=str(path), fix="`slime-hpc rollouts ls` lists those that there are")
    return hdf5.read(path)


def _steps(value: str) -> tuple[int, int] | None:
    """First and last; one step is both."""
    if not value:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise click.BadParameter(f"{value!r}: give one step, e.g. 3, or the first and the last, e.g. 3-12.")
    return int(found[1]), int(found[2] or found[1])
