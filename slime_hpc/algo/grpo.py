"""GRPO: an answer compared with its siblings.

Shao et al. 2024, DeepSeekMath, section 4.1.2; Dr. GRPO: Liu et al. 2025, arXiv:2503.20783.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slime_hpc.algo.advantage import Advantage, group_means

_EPS = 1e-6


def score(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float64]:
    """(r - mean) / (std + 1e-6) within each group, std with N - 1; without `normalize_std` r - mean. A group of one has score 0."""
    mean_N, count_N = group_means(reward_N, group_N)
    centred_N = reward_N - mean_N
    if not normalize_std:
        return centred_N
    variance_N = group_means(centred_N**2, group_N)[0] * count_N / np.maximum(count_N - 1, 1)
    scaled_N: npt.NDArray[np.float64] = centred_N / (np.sqrt(variance_N) + _EPS)
    return scaled_N


GRPO = Advantage(score)
