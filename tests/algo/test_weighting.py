import numpy as np
import pytest

from slime_hpc.algo.weighting import Reducer, constant, rollout_mean, sample_mean, token_mean, token_weights

MASK = np.array([1, 1, 1, 1, 0, 1, 0, 0, 1], np.uint8)
OFFSETS = np.array([0, 2, 6, 8, 9], np.int64)


def test_sample_mean_over_each_sample_then_over_samples_with_tokens() -> None:
    weights = token_weights(MASK, OFFSETS, [0, 1, 2, 3], sample_mean)
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 9, 1 / 9, 0, 1 / 9, 0, 0, 1 / 3], rtol=1e-6)


def test_token_mean_over_all_tokens_of_the_update() -> None:
    weights = token_weights(MASK, OFFSETS, [1, 3], token_mean)
    np.testing.assert_allclose(weights, [0, 0, 0.25, 0.25, 0, 0.25, 0, 0, 0.25])


def test_a_constant_divisor_makes_long_answers_count_more() -> None:
    weights = token_weights(MASK, OFFSETS, [0, 1, 2, 3], constant, length=4)
    np.testing.assert_allclose(weights, np.where(MASK, 1 / 12, 0), rtol=1e-6)


def test_the_parts_of_a_rollout_share_one_divisor() -> None:
    weights = token_weights(MASK, OFFSETS, [0, 1, 2, 3], rollout_mean, rollout_N=np.array([7, 7, 7, 4]))
    np.testing.assert_allclose(weights, np.where(MASK, [1 / 10] * 8 + [1 / 2], 0), rtol=1e-6)
    alone = token_weights(MASK, OFFSETS, [0, 1, 2, 3], rollout_mean, rollout_N=np.arange(4))
    np.testing.assert_allclose(alone, token_weights(MASK, OFFSETS, [0, 1, 2, 3], sample_mean))


@pytest.mark.parametrize("reduce", [sample_mean, rollout_mean, token_mean])
def test_weights_sum_to_one_or_to_nothing(reduce: Reducer) -> None:
    assert token_weights(MASK, OFFSETS, [0, 1, 2, 3], reduce).sum() == pytest.approx(1)
    assert not token_weights(MASK, OFFSETS, [2], reduce).any()
