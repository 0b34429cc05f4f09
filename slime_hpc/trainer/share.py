"""This rank's share of a batch: its rows read from the sealed file, its micro-batches packed, and what the loss needs of each token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slime_hpc.algo.advantage import ADVANTAGES
from slime_hpc.algo.weighting import token_weights
from slime_hpc.config.schema import Experiment
from slime_hpc.data.packing import Update, schedule
from slime_hpc.store import hdf5
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One data-parallel rank's part of a step; the arrays over R are indexed by `MicroBatch.index_R`."""

    updates: tuple[tuple[MicroBatch, ...], ...]
    """Micro-batches of each optimizer update."""
    advantage_R: torch.Tensor
    weight_R: torch.Tensor
    """The token's weight in the loss of its update."""
    mask_R: torch.Tensor
    """True where the token is trained on."""
    engine_logprob_R: torch.Tensor
    num_tokens: int
    """Tokens of the whole batch, prompts and responses."""


def read(path: Path, experiment: Experiment, policy: Policy, place: Place) -> Share:
    """This rank's share of the batch. Raises DataError for a file that is not whole."""
    lengths_N, group_N = hdf5.read_lengths(path)
    trainer = experiment.trainer
    updates = schedule(lengths_N, group_N, dp_size=place.dp_size, tokens_cap=trainer.tokens_per_gpu, updates=trainer.updates_per_step)
    rows = np.array(sorted(i for update in updates for batch in update.ranks[place.dp_rank] for i in batch), np.int64)
    batch = hdf5.read_rows(path, rows)
    own = {int(row): position for position, row in enumerate(rows)}
    advantage_N, weight_R = _signals(path, experiment, updates, group_N, rows)
    lengths_own = batch.response_lengths_N

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(place.device)

    return Share(
        updates=tuple(
            tuple(policy.pack(batch, [own[i] for i in members]) for members in update.ranks[place.dp_rank]) for update in updates
        ),
        advantage_R=tensor(np.repeat(advantage_N[rows], lengths_own)),
        weight_R=tensor(weight_R),
        mask_R=tensor(batch.loss_mask_R.astype(bool)),
        engine_logprob_R=tensor(batch.logprobs_R),
        num_tokens=int(lengths_N.sum()),
    )


def _signals(
    path: Path, experiment: Experiment, updates: tuple[Update, ...], group_N: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages of all samples (a group's siblings may be on other ranks), and the token weights of this rank's rows."""
    algorithm = experiment.algorithm
    columns = hdf5.read_columns(path, ("reward_N", "loss_mask_R", "response_offsets"))
    advantage_N = ADVANTAGES[algorithm.advantage](columns["reward_N"], group_N, normalize_std=algorithm.normalize_std)
    mask_R, offsets = columns["loss_mask_R"], columns["response_offsets"]
    weight_R = np.zeros(len(mask_R), np.float32)
    for update in updates:
        weight_R += token_weights(mask_R, offsets, update.samples, mean=algorithm.loss_mean)
    own_R = [weight_R[offsets[i] : offsets[i + 1]] for i in rows]
    return advantage_N, np.concatenate(own_R) if own_R else weight_R[:0]
