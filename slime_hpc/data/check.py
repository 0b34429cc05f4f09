"""Whether the parts of a stored batch fit together, before any rank trains on it.

Every rank checks the same whole columns, so that all agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slime_hpc.errors import DataError

_FIX = "delete it; it is generated again"


def check(path: Path, lengths_N: npt.NDArray[np.int64], columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """`columns` has reward_N, response_offsets and loss_mask_R. Raises DataError with the first sample that is wrong."""
    reward_N, offsets, mask_R = (columns[name] for name in ("reward_N", "response_offsets", "loss_mask_R"))
    where = str(path)
    if not len(lengths_N):
        raise DataError("The batch holds no sample.", where=where, fix=_FIX)
    if len(reward_N) != len(lengths_N) or len(offsets) != len(lengths_N) + 1:
        raise DataError(
            f"The batch has {len(lengths_N)} samples, {len(reward_N)} rewards and {len(offsets) - 1} responses.", where=where, fix=_FIX
        )
    responses_N = np.diff(offsets)
    if len(mask_R) != offsets[-1] or offsets[0] != 0:
        raise DataError(
            f"The responses have {offsets[-1] - offsets[0]} tokens, the loss mask has {len(mask_R)}.",
            where=f"{where}: loss_mask_R",
            fix=_FIX,
        )
    _none(responses_N < 0, f"{where}: response_offsets", "has a response of less than no token")
    _none(responses_N >= lengths_N, f"{where}: token_offsets", "has no prompt token before its response")
    _none(~np.isfinite(reward_N), f"{where}: reward_N", "has a reward that is not finite", fix="correct the reward function")


def _none(wrong_N: npt.NDArray[np.bool_], where: str, what: str, *, fix: str = _FIX) -> None:
    if wrong_N.any():
        raise DataError(f"Sample {int(wrong_N.argmax())} {what} ({int(wrong_N.sum())} such of {len(wrong_N)}).", where=where, fix=fix)
