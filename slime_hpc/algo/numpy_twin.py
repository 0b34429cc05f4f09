"""The losses again in NumPy, with their derivatives by log-prob written out: what the torch versions are checked against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def ppo_clip(logprob_R: Array, old_logprob_R: Array, advantage_R: Array, *, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """Loss and d loss / d logprob, each (R,)."""
    ratio_R = np.exp(logprob_R - old_logprob_R)
    clipped_R = np.where(advantage_R >= 0, ratio_R > 1 + clip_high, ratio_R < 1 - clip_low)
    bound_R = np.where(advantage_R >= 0, 1 + clip_high, 1 - clip_low)
    return -np.where(clipped_R, bound_R, ratio_R) * advantage_R, np.where(clipped_R, 0.0, -ratio_R * advantage_R)


def k1(logprob_R: Array, reference_R: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    return logprob_R - reference_R, np.ones_like(logprob_R)


def k2(logprob_R: Array, reference_R: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    return (logprob_R - reference_R) ** 2 / 2, logprob_R - reference_R


def k3(logprob_R: Array, reference_R: Array) -> tuple[Array, Array]:
    """Estimate and its derivative, each (R,)."""
    ratio_R = np.exp(reference_R - logprob_R)
    return ratio_R - 1 - (reference_R - logprob_R), 1 - ratio_R
