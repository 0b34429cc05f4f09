"""No advantage from the reward: for distillation from a teacher alone (Agarwal et al. 2024, arXiv:2306.13649), and for `loss = "sft"`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slime_hpc.algo.advantage import Advantage


def score(reward_N: npt.NDArray[np.float64], group_N: npt.NDArray[np.int64], *, normalize_std: bool) -> npt.NDArray[np.float64]:
    """0 for every answer."""
    return np.zeros_like(reward_N)


NONE = Advantage(score)
