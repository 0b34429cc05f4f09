"""RLOO: an answer compared with the mean of its siblings without it (Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slime_hpc.algo.advantage import Advantage, group_means


def score(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float64]:
    """r_i - mean of the others = (r_i - mean of all) k / (k - 1). A group of one has score 0; `normalize_std` has no part in it."""
    mean_N, count_N = group_means(reward_N, group_N)
    return (reward_N - mean_N) * count_N / np.maximum(count_N - 1, 1)


RLOO = Advantage(score)
