"""Advantages: what each answer was worth, compared with its siblings. NumPy, computed alike on every rank; knows no torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Advantage = Callable[..., npt.NDArray[np.float32]]
_EPS = 1e-6


def grpo(reward_N: npt.NDArray[np.float32], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float32]:
    """(N,) advantages: (r - mean) / (std + 1e-6) within each group (Shao et al. 2024, DeepSeekMath, eq. 3 ff.; std with N - 1).

    Without `normalize_std` only the mean is taken off (Liu et al. 2025, Dr. GRPO). A group of one has advantage 0.
    """
    _, index_N, count_G = np.unique(group_N, return_inverse=True, return_counts=True)
    reward_N = reward_N.astype(np.float64)
    centred_N = reward_N - (np.bincount(index_N, reward_N) / count_G)[index_N]
    if normalize_std:
        std_G = np.sqrt(np.bincount(index_N, centred_N**2) / np.maximum(count_G - 1, 1))
        centred_N = centred_N / (std_G[index_N] + _EPS)
    return centred_N.astype(np.float32)


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo}
