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


def check(path: Path, lengths_N: npt.NDArray[np.int64], columns: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, int]) -> None:
    """`columns` has reward_N and response_offsets, `sizes` the length of each field. Raises DataError with what is wrong first."""
    reward_N, offsets = columns["reward_N"], columns["response_offsets"]
    where = str(path)
    if not len(lengths_N):
        raise DataError("The batch holds no sample.", where=where, fix=_FIX)
    if len(reward_N) != len(lengths_N) or len(offsets) != len(lengths_N) + 1:
        raise DataError(
            f"The batch has {len(lengths_N)} samples, {len(reward_N)} rewards and {len(offsets) - 1} responses.", where=where, fix=_FIX
        )
    responses_N = np.diff(offsets)
    tokens = {"tokens_T": lengths_N.sum(), "routes_TLK": lengths_N.sum(), "loss_mask_R": offsets[-1], "logprobs_R": offsets[-1]}
    for name, wanted in tokens.items():
        if sizes.get(name, wanted) != wanted:
            whose = "samples" if wanted == lengths_N.sum() else "responses"
            raise DataError(f"The {whose} have {wanted} tokens, {name} has {sizes[name]} values.", where=f"{where}: {name}", fix=_FIX)
    if offsets[0] != 0:
        raise DataError(f"The first response begins at {offsets[0]}, not at 0.", where=f"{where}: response_offsets", fix=_FIX)
    _none(responses_N < 0, f"{where}: response_offsets", "has a response of less than no token")
    _none(responses_N >= lengths_N, f"{where}: token_offsets", "has no prompt token before its response")
    _none(~np.isfinite(reward_N), f"{where}: reward_N", "has a reward that is not finite", fix="correct the reward function")


def _none(wrong_N: npt.NDArray[np.bool_], where: str, what: str, *, fix: str = _FIX) -> None:
    if wrong_N.any():
        raise DataError(f"Sample {int(wrong_N.argmax())} {what} ({int(wrong_N.sum())} such of {len(wrong_N)}).", where=where, fix=fix)
