import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo.advantage import grpo

GROUPS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8), min_size=1, max_size=6)


@given(GROUPS)
def test_an_advantage_compares_an_answer_with_its_siblings(groups: list[list[float]]) -> None:
    rewards = np.array([r for group in groups for r in group], np.float32)
    ids = np.array([10 * i for i, group in enumerate(groups) for _ in group], np.int64)
    advantages = grpo(rewards, ids, normalize_std=True)
    expected = [(r - np.mean(g)) / (np.std(g, ddof=1) + 1e-6) for g in groups for r in g]
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)


@given(GROUPS)
def test_without_the_deviation_only_the_mean_goes(groups: list[list[float]]) -> None:
    rewards = np.array([r for group in groups for r in group], np.float32)
    ids = np.array([i for i, group in enumerate(groups) for _ in group], np.int64)
    expected = [r - np.mean(g) for g in groups for r in g]
    np.testing.assert_allclose(grpo(rewards, ids, normalize_std=False), expected, atol=1e-6)


def test_the_order_of_samples_does_not_matter() -> None:
    rewards = np.array([1, 0, 0, 1, 1, 0], np.float32)
    ids = np.array([5, 5, 5, 2, 2, 2], np.int64)
    order = np.array([3, 0, 4, 1, 5, 2])
    np.testing.assert_array_equal(grpo(rewards, ids, normalize_std=True)[order], grpo(rewards[order], ids[order], normalize_std=True))


def test_equal_rewards_teach_nothing() -> None:
    assert not grpo(np.ones(4, np.float32), np.zeros(4, np.int64), normalize_std=True).any()
