"""This rank's share of a batch: its rows read from the sealed file, its micro-batches packed, and what the loss needs of each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slime_hpc.algo.registry import Parts
from slime_hpc.algo.weighting import token_weights
from slime_hpc.config.schema import Experiment
from slime_hpc.data.batch import Batch
from slime_hpc.data.check import check
from slime_hpc.data.packing import Update, schedule
from slime_hpc.errors import DataError
from slime_hpc.store import hdf5
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One data-parallel rank's part of a step; the arrays over R are indexed by `MicroBatch.index_R`."""

    path: Path
    updates: tuple[tuple[MicroBatch, ...], ...]
    """Micro-batches of each optimizer update."""
    score_R: torch.Tensor
    """What the token's answer was worth, compared with its siblings."""
    weight_R: torch.Tensor
    """The token's weight in the loss of its update."""
    mask_R: torch.Tensor
    """True where the token is trained on."""
    sample_R: torch.Tensor
    """Which of the rank's samples the token belongs to, ascending."""
    engine_logprob_R: torch.Tensor
    version_R: torch.Tensor
    """Version of the weights that drew the first token of the token's answer."""
    versions: tuple[int, ...]
    """All of them in the whole batch, ascending: alike on all ranks."""
    counts: dict[str, float]
    """Of the whole batch: tokens, samples longer than a micro-batch may be, and the fraction of samples with score 0."""


def read(path: Path, experiment: Experiment, parts: Parts, policy: Policy, place: Place) -> Share:
    """This rank's share of the batch. Raises DataError for a file that is not whole, or whose parts do not fit together."""
    lengths_N, group_N = hdf5.read_lengths(path)
    columns = hdf5.read_columns(path, ("reward_N", "loss_mask_R", "response_offsets", "index_N", "weight_version_N"))
    check(path, lengths_N, columns, hdf5.read_sizes(path))
    trainer = experiment.trainer
    updates = schedule(lengths_N, group_N, dp_size=place.dp_size, tokens_cap=trainer.tokens_per_pack, updates=trainer.updates_per_step)
    rows = np.array(sorted(i for update in updates for batch in update.ranks[place.dp_rank] for i in batch), np.int64)
    batch = hdf5.read_rows(path, rows)
    routed = experiment.algorithm.route_replay
    if routed and batch.routes_TLK is None:
        raise DataError("The batch holds no routes.", where=f"{path}: routes_TLK", fix="delete it; it is generated again")
    own = {int(row): position for position, row in enumerate(rows)}
    reward_N = columns["reward_N"].astype(np.float64)
    score_N = parts.advantage.score(reward_N, group_N, normalize_std=experiment.algorithm.normalize_std).astype(np.float32)
    lengths_own = batch.response_lengths_N

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(place.device)

    return Share(
        path=path,
        updates=tuple(
            tuple(_packed(policy, batch, [own[i] for i in members], routed=routed) for members in update.ranks[place.dp_rank])
            for update in updates
        ),
        score_R=tensor(np.repeat(score_N[rows], lengths_own)),
        weight_R=tensor(_weights(experiment, parts, updates, columns, _rollouts(group_N, columns["index_N"]), rows)),
        mask_R=tensor(batch.loss_mask_R.astype(bool)),
        sample_R=tensor(np.repeat(np.arange(len(rows)), lengths_own)),
        engine_logprob_R=tensor(batch.logprobs_R),
        version_R=tensor(np.repeat(batch.weight_version_N, lengths_own)),
        versions=tuple(np.unique(columns["weight_version_N"]).tolist()),
        counts={
            "tokens": int(lengths_N.sum()),
            "oversized_samples": int((lengths_N > trainer.tokens_per_pack).sum()),
            "zero_advantage_fraction": float((score_N == 0).mean()),
        },
    )


def _packed(policy: Policy, batch: Batch, members: list[int], *, routed: bool) -> MicroBatch:
    """A micro-batch of rows, with the routes of their tokens."""
    packed = policy.pack(batch, members)
    if not routed or batch.routes_TLK is None:
        return packed
    offsets = batch.token_offsets
    routes = np.concatenate([batch.routes_TLK[offsets[i] : offsets[i + 1]] for i in members])
    return dataclasses.replace(packed, routes_TLK=torch.from_numpy(routes.astype(np.int64)))


def _rollouts(group_N: np.ndarray, index_N: np.ndarray) -> np.ndarray:
    """(N,) numbers, the same for samples of one prompt with one index: parts of one answer."""
    return np.unique(np.stack([group_N, index_N], axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _weights(
    experiment: Experiment,
    parts: Parts,
    updates: tuple[Update, ...],
    columns: Mapping[str, np.ndarray],
    rollout_N: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """The token weights of this rank's rows."""
    mask_R, offsets = columns["loss_mask_R"], columns["response_offsets"]
    length = experiment.algorithm.loss_length or experiment.rollout.max_tokens
    weight_R = np.zeros(len(mask_R), np.float32)
    for update in updates:
        weight_R += token_weights(mask_R, offsets, update.samples, parts.reduce, rollout_N=rollout_N, length=length)
    own_R = [weight_R[offsets[i] : offsets[i + 1]] for i in rows]
    return np.concatenate(own_R) if own_R else weight_R[:0]
