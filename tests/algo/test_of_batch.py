"""Advantages of a stored batch, against the NumPy twin of what the trainer does."""

import dataclasses

import numpy as np
import pytest

from slime_hpc.algo import numpy_twin
from slime_hpc.algo.of_batch import advantages
from slime_hpc.data.collate import collate
from slime_hpc.testing.samples import make_sample
from tests.algo.answers import algorithm

REWARDS = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.0, 1.0, 0.25))
LENGTHS = (3, 1, 4)


@pytest.fixture
def batch():
    made = [
        make_sample(group=10 * g, index=i, response=LENGTHS[i], reward=reward)
        for g, group in enumerate(REWARDS)
        for i, reward in enumerate(group)
    ]
    made[0] = dataclasses.replace(made[0], loss_mask_R=np.array([1, 0, 1], np.uint8))
    return collate(made, step=1, weight_version=0)


def by_sample(batch, values_R):
    return np.split(values_R, batch.response_offsets[1:-1])


def test_every_token_has_what_its_answer_is_worth(batch):
    values = by_sample(batch, advantages(batch, algorithm(advantage="grpo")))
    expected = [(r - np.mean(group)) / (np.std(group, ddof=1) + 1e-6) for group in REWARDS for r in group]
    for value, score, length in zip(values, expected, 3 * LENGTHS, strict=True):
        np.testing.assert_allclose(value, np.full(length, score), atol=1e-6)


def test_discounted_and_whitened_is_that_of_the_twin(batch):
    masks = by_sample(batch, batch.loss_mask_R)
    expected = []
    for reward, mask in zip(batch.reward_N, masks, strict=True):
        rewards = np.zeros(len(mask))
        rewards[np.flatnonzero(mask)[-1]] = reward
        expected.append(numpy_twin.returns(rewards, gamma=0.9))
    found = advantages(batch, algorithm(advantage="reinforce_plus_plus", gamma=0.9))
    np.testing.assert_allclose(found, np.concatenate(numpy_twin.whiten(expected, masks)), atol=1e-5)


def test_whitening_can_be_added(batch):
    masks = by_sample(batch, batch.loss_mask_R)
    plain = by_sample(batch, advantages(batch, algorithm(advantage="rloo")).astype(np.float64))
    found = advantages(batch, algorithm(advantage="rloo", whiten=True))
    np.testing.assert_allclose(found, np.concatenate(numpy_twin.whiten(plain, masks)), atol=1e-5)
