"""How much each token's loss counts, so that a plain sum over all ranks and micro-batches is the mean that was asked for. Pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def token_weights(
    mask_R: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], samples: Sequence[int], *, mean: str, length: int = 0
) -> npt.NDArray[np.float32]:
    """(R,) weights of the tokens of an update's samples; 0 for every other token, and where the mask is 0.

    mask_R and offsets (N + 1,) are those of the whole batch, `samples` the rows of the update. mean = 'sample': the mean over each sample's
    tokens, then over the samples that have any; mean = 'token': the mean over all tokens of the update; mean = 'constant': each sample's
    sum divided by `length`, then the mean over the samples that have any (Liu et al. 2025, Dr. GRPO).
    """
    weights_R = np.zeros(len(mask_R), np.float64)
    counts = {i: int(mask_R[offsets[i] : offsets[i + 1]].sum()) for i in samples}
    trained = sum(count > 0 for count in counts.values())
    total = sum(counts.values())
    for i, count in counts.items():
        if count:
            divisor = {"token": total, "sample": count * trained, "constant": length * trained}[mean]
            weights_R[offsets[i] : offsets[i + 1]] = 1.0 / divisor
    return (weights_R * mask_R).astype(np.float32)
