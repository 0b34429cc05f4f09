from pathlib import Path

import numpy as np
import pytest

from slime_hpc.data.check import check
from slime_hpc.errors import DataError

LENGTHS = np.array([5, 3])
COLUMNS = {"reward_N": np.array([0.5, 1.0]), "response_offsets": np.array([0, 3, 5]), "loss_mask_R": np.ones(5, np.uint8)}
NONE = {"reward_N": np.zeros(0), "response_offsets": np.zeros(1, np.int64), "loss_mask_R": np.zeros(0, np.uint8)}


def test_a_whole_batch_passes():
    check(Path("b.h5"), LENGTHS, COLUMNS)


@pytest.mark.parametrize(
    ("lengths", "columns", "what", "where"),
    [
        (LENGTHS[:0], NONE, "holds no sample", "b.h5"),
        (LENGTHS, {"reward_N": np.zeros(1)}, "2 samples, 1 rewards and 2 responses", "b.h5"),
        (LENGTHS, {"loss_mask_R": np.ones(4, np.uint8)}, "have 5 tokens, the loss mask has 4", "b.h5: loss_mask_R"),
        (LENGTHS, {"response_offsets": np.array([0, 6, 5])}, "Sample 1 has a response of less than no token", "b.h5: response_offsets"),
        (np.array([5, 2]), {}, "Sample 1 has no prompt token before its response", "b.h5: token_offsets"),
        (LENGTHS, {"reward_N": np.array([np.nan, 1])}, r"Sample 0 has a reward that is not finite \(1 such of 2\)", "b.h5: reward_N"),
    ],
)
def test_what_does_not_fit_together_is_said(lengths, columns, what, where):
    with pytest.raises(DataError, match=what) as caught:
        check(Path("b.h5"), lengths, {**COLUMNS, **columns})
    assert caught.value.where == where
    assert caught.value.fix
