"""The samples that `slime-hpc rollouts show` shows, with what the run's experiment says of them: advantages, and prompts as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from slime_hpc.config.schema import Algorithm, Experiment
from slime_hpc.data.batch import Batch
from slime_hpc.data.sample import Sample
from slime_hpc.data.split import split
from slime_hpc.data.tokenize import Decode, load_tokenizer
from slime_hpc.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A sample with what is known of it besides. `row` is its place in the batch."""

    row: int
    sample: Sample
    advantages_R: list[float] | None
    """Of each response token; None where they cannot be computed."""
    prompt: str | None
    """None without a tokenizer."""

    @property
    def advantage(self) -> float | None:
        """Mean over the trained tokens; None when there are none, or nothing is known of them."""
        if self.advantages_R is None:
            return None
        trained = [value for value, mask in zip(self.advantages_R, self.sample.loss_mask_R.tolist(), strict=True) if mask]
        return sum(trained) / len(trained) if trained else None

    @property
    def logprob_mean(self) -> float | None:
        """The engine's, over all response tokens."""
        return float(self.sample.logprobs_R.mean()) if len(self.sample.logprobs_R) else None


def show(batch: Batch, rows: Sequence[int], algorithm: Algorithm, decode: Decode | None) -> list[Shown]:
    """The samples at these places of the batch."""
    samples = list(split(batch))
    advantages_R = _advantages(batch, algorithm)
    bounds = batch.response_offsets.tolist()
    return [
        Shown(
            row=row,
            sample=samples[row],
            advantages_R=None if advantages_R is None else advantages_R[bounds[row] : bounds[row + 1]],
            prompt=decode(samples[row].prompt_tokens_P.tolist()) if decode else None,
        )
        for row in rows
    ]


def choose(batch: Batch, group: int | None, sample: int | None) -> list[int]:
    """The places in the batch of what was asked for. Raises DataError when it is not there."""
    if sample is not None:
        if sample >= batch.num_samples:
            raise DataError(f"There is no sample {sample}.", where="--sample", fix=f"the batch has {batch.num_samples}, counted from 0")
        return [sample]
    groups = batch.group_N.tolist()
    wanted = groups[0] if group is None and groups else group
    rows = [row for row, each in enumerate(groups) if each == wanted]
    if not rows:
        near = f"the batch has groups from {min(groups)} to {max(groups)}" if groups else "the batch has no sample"
        raise DataError(f"There is no group {wanted}.", where="--group", fix=near)
    return rows


def _advantages(batch: Batch, algorithm: Algorithm) -> list[float] | None:
    """None, and a line that says why, where torch is not installed."""
    try:
        from slime_hpc.algo.of_batch import advantages
    except ModuleNotFoundError as error:
        click.echo(f"advantages are unknown: they need the package {error.name}", err=True)
        return None
    if algorithm.kl_in == "reward" and algorithm.kl_coef > 0:
        click.echo("advantages are shown without the KL penalty, which needs the models", err=True)
    values: list[float] = advantages(batch, algorithm).tolist()
    return values


def load_decoder(experiment: Experiment) -> Decode | None:
    """None, and a line that says why, where the run's tokenizer cannot be loaded."""
    path = Path(experiment.model.path)
    try:
        tokenizer = load_tokenizer(path)
    except ModuleNotFoundError as error:
        click.echo(f"prompts stay token ids: to decode them needs the package {error.name}", err=True)
        return None
    except (OSError, ValueError) as error:
        click.echo(f"prompts stay token ids: no tokenizer in {path}: {str(error).splitlines()[0]}", err=True)
        return None
    return lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
