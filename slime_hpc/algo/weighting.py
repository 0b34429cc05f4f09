"""How much each token's loss counts, so that a plain sum over all ranks and micro-batches is the mean that was asked for. Pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Reducer(Protocol):
    """Weight of a trained token of each of an update's samples, (S,); `algorithm.loss_mean` names one."""

    def __call__(self, count_S: Ints, rollout_S: Ints, *, length: int) -> Floats:
        """Samples have count_S > 0 trained tokens; those with one number in rollout_S are of one rollout. `length`: loss_length."""


def sample_mean(count_S: Ints, rollout_S: Ints, *, length: int) -> Floats:
    """The mean over each sample's tokens, then over samples (Shao et al. 2024, GRPO, eq. 3)."""
    return 1.0 / (count_S * len(count_S))


def rollout_mean(count_S: Ints, rollout_S: Ints, *, length: int) -> Floats:
    """The mean over each rollout's tokens, then over rollouts: an agent's run in several samples counts as one answer does."""
    _, index_S = np.unique(rollout_S, return_inverse=True)
    tokens_R = np.bincount(index_S, count_S)
    return np.asarray(1.0 / (tokens_R[index_S] * len(tokens_R)))


def token_mean(count_S: Ints, rollout_S: Ints, *, length: int) -> Floats:
    """The mean over all tokens (Yu et al. 2025, DAPO, eq. 8)."""
    return np.full(len(count_S), 1.0 / count_S.sum())


def constant(count_S: Ints, rollout_S: Ints, *, length: int) -> Floats:
    """Each sample's sum divided by `length`, then the mean over samples (Liu et al. 2025, Dr. GRPO, section 3.2)."""
    return np.full(len(count_S), 1.0 / (length * len(count_S)))


def token_weights(
    mask_R: npt.NDArray[np.uint8],
    offsets: Ints,
    samples: Sequence[int],
    reduce: Reducer,
    *,
    rollout_N: Ints | None = None,
    length: int = 0,
) -> npt.NDArray[np.float32]:
    """(R,) weights of the tokens of an update's samples; 0 for every other token, and where the mask is 0.

    mask_R and offsets (N + 1,) are those of the whole batch, `samples` the rows of the update; rollout_N: each row's rollout, else a row is
    one. Samples without a trained token are left out of every mean.
    """
    weights_R = np.zeros(len(mask_R), np.float64)
    counts = {i: int(mask_R[offsets[i] : offsets[i + 1]].sum()) for i in samples}
    trained = np.array([i for i, count in counts.items() if count], np.int64)
    if len(trained):
        count_S = np.array([counts[i] for i in trained.tolist()], np.int64)
        weight_S = reduce(count_S, trained if rollout_N is None else rollout_N[trained], length=length)
        for i, weight in zip(trained.tolist(), weight_S.tolist(), strict=True):
            weights_R[offsets[i] : offsets[i + 1]] = weight
    return (weights_R * mask_R).astype(np.float32)
