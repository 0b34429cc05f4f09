from pathlib import Path

import numpy as np
import pytest

from slime_hpc.data.check import check
from slime_hpc.errors import DataError

LENGTHS = np.array([5, 3])
COLUMNS = {"reward_N": np.array([0.5, 1.0]), "response_offsets": np.array([0, 3, 5])}
SIZES = {"tokens_T": 8, "loss_mask_R": 5, "logprobs_R": 5}
NONE = {"reward_N": np.zeros(0), "response_offsets": np.zeros(1, np.int64)}


def test_a_whole_batch_passes():
    check(Path("b.h5"), LENGTHS, COLUMNS, SIZES)
    check(Path("b.h5"), LENGTHS, COLUMNS, {**SIZES, "routes_TLK": 8})


@pytest.mark.parametrize(
    ("lengths", "columns", "what", "where"),
    [
        (LENGTHS[:0], NONE, "holds no sample", "b.h5"),
        (LENGTHS, {"reward_N": np.zeros(1)}, "2 samples, 1 rewards and 2 responses", "b.h5"),
        (LENGTHS, {"response_offsets": np.array([1, 3, 5])}, "first response begins at 1", "b.h5: response_offsets"),
        (LENGTHS, {"response_offsets": np.array([0, 6, 5])}, "Sample 1 has a response of less than no token", "b.h5: response_offsets"),
        (np.array([5, 2]), {}, "Sample 1 has no prompt token before its response", "b.h5: token_offsets"),
        (LENGTHS, {"reward_N": np.array([np.nan, 1])}, r"Sample 0 has a reward that is not finite \(1 such of 2\)", "b.h5: reward_N"),
    ],
)
def test_what_does_not_fit_together_is_said(lengths, columns, what, where):
    with pytest.raises(DataError, match=what) as caught:
        check(Path("b.h5"), lengths, {**COLUMNS, **columns}, {**SIZES, "tokens_T": int(lengths.sum())})
    assert caught.value.where == where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("loss_mask_R", "responses have 5 tokens, loss_mask_R has 4"),
        ("logprobs_R", "responses have 5 tokens, logprobs_R has 4"),
        ("routes_TLK", "samples have 8 tokens, routes_TLK has 4"),
        ("tokens_T", "samples have 8 tokens, tokens_T has 4"),
    ],
)
def test_a_field_of_another_length_is_named(name, what):
    with pytest.raises(DataError, match=what) as caught:
        check(Path("b.h5"), LENGTHS, COLUMNS, {**SIZES, name: 4})
    assert caught.value.where == f"b.h5: {name}"
