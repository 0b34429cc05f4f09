"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): no critic; advantages whitened over the whole batch instead of within a group.

`PLUS_PLUS` credits discounted returns of the plain reward; `PLUS_PLUS_BASELINE` takes the group's mean off first.
`normalize_std` has no part in either.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slime_hpc.algo.advantage import Advantage, group_means


def plain(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float64]:
    """The reward itself."""
    return reward_N


def baseline(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float64]:
    """r - mean of the group."""
    return reward_N - group_means(reward_N, group_N)[0]


PLUS_PLUS = Advantage(plain, discounted=True, whiten=True)
PLUS_PLUS_BASELINE = Advantage(baseline, whiten=True)
