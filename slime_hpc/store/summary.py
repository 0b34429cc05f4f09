"""The figures of a batch that a person wants to see of every step, from its small columns: no token is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slime_hpc.data.sample import Finish
from slime_hpc.store import hdf5

_COLUMNS = (
    "token_offsets", "response_offsets", "reward_N", "reward_failed_N", "group_N", "finish_N", "weight_version_N", "weight_version_last_N",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One batch. A figure over samples is None where there is no sample."""

    samples: int
    groups: int
    tokens: int
    """Of prompts and responses."""
    prompt_mean: float | None
    """Tokens."""
    response_mean: float | None
    response_median: float | None
    response_max: int | None
    reward_mean: float | None
    reward_std: float | None
    reward_min: float | None
    reward_max: float | None
    groups_with_spread: int
    """Whose answers were not all scored alike: only these teach anything."""
    truncated: int
    aborted: int
    reward_failed: int
    weight_version: int | None
    """The oldest that a response token was drawn from."""
    weight_version_last: int | None
    """The newest."""


def read_summary(path: Path) -> Summary:
    """Raises DataError as `hdf5.read` does."""
    return summarize(hdf5.read_columns(path, _COLUMNS))


def summarize(columns: Mapping[str, npt.NDArray[Any]]) -> Summary:
    """From the columns of a batch by name; tokens_T, logprobs_R, loss_mask_R and the texts are not among them."""
    responses_N = np.diff(columns["response_offsets"])
    prompts_N = np.diff(columns["token_offsets"]) - responses_N
    reward_N = columns["reward_N"].astype(np.float64)
    some = len(reward_N) > 0
    groups, spread = _spread(reward_N, columns["group_N"])
    return Summary(
        samples=len(reward_N),
        groups=groups,
        tokens=int(columns["token_offsets"][-1]),
        prompt_mean=float(prompts_N.mean()) if some else None,
        response_mean=float(responses_N.mean()) if some else None,
        response_median=float(np.median(responses_N)) if some else None,
        response_max=int(responses_N.max()) if some else None,
        reward_mean=float(reward_N.mean()) if some else None,
        reward_std=float(reward_N.std()) if some else None,
        reward_min=float(reward_N.min()) if some else None,
        reward_max=float(reward_N.max()) if some else None,
        groups_with_spread=spread,
        truncated=int((columns["finish_N"] == Finish.LENGTH).sum()),
        aborted=int((columns["finish_N"] == Finish.ABORT).sum()),
        reward_failed=int((columns["reward_failed_N"] != 0).sum()),
        weight_version=int(columns["weight_version_N"].min()) if some else None,
        weight_version_last=int(columns["weight_version_last_N"].max()) if some else None,
    )


def _spread(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64]) -> tuple[int, int]:
    """How many groups there are, and how many of them have answers with different rewards."""
    ids_G, first_G, index_N = np.unique(group_N, return_index=True, return_inverse=True)
    differs_N = reward_N != reward_N[first_G][index_N]
    return len(ids_G), len(np.unique(index_N[differs_N]))
