import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import numpy_twin, registry
from slime_hpc.algo.advantage import credit, returns, whiten
from slime_hpc.config.algorithms import ADVANTAGES, WITH_CRITIC, WITH_SIBLINGS
from tests.algo.answers import ANSWERS, algorithm, tokens

GROUPS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8), min_size=1, max_size=6)


def score(name: str, groups: list[list[float]], *, normalize_std: bool = True) -> np.ndarray:
    rewards = np.array([r for group in groups for r in group], np.float64)
    ids = np.array([10 * i for i, group in enumerate(groups) for _ in group], np.int64)
    return registry.load(algorithm(advantage=name)).advantage.score(rewards, ids, normalize_std=normalize_std)


EXPECTED = {
    "grpo": lambda r, group: (r - np.mean(group)) / (np.std(group, ddof=1) + 1e-6) if len(group) > 1 else 0.0,
    "dr_grpo": lambda r, group: r - np.mean(group),
    "gae": lambda r, group: r,
    "none": lambda r, group: 0.0,
    "rloo": lambda r, group: r - (sum(group) - r) / (len(group) - 1) if len(group) > 1 else 0.0,
    "reinforce_plus_plus": lambda r, group: r,
    "reinforce_plus_plus_baseline": lambda r, group: r - np.mean(group),
}


@pytest.mark.parametrize("name", ADVANTAGES)
@given(groups=GROUPS)
def test_a_score_is_that_of_its_formula(name, groups):
    expected = [EXPECTED[name](np.float64(r), np.array(group, np.float64)) for group in groups for r in group]
    np.testing.assert_allclose(score(name, groups), expected, rtol=1e-6, atol=1e-6)


@given(groups=GROUPS)
def test_without_the_deviation_only_the_mean_goes(groups):
    np.testing.assert_allclose(score("grpo", groups, normalize_std=False), score("reinforce_plus_plus_baseline", groups))


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_order_of_samples_does_not_matter(name):
    rewards, ids, order = np.array([1, 0, 0, 1, 1, 0.5]), np.array([5, 5, 5, 2, 2, 2]), np.array([3, 0, 4, 1, 5, 2])
    own = registry.load(algorithm(advantage=name)).advantage.score
    np.testing.assert_allclose(own(rewards, ids, normalize_std=True)[order], own(rewards[order], ids[order], normalize_std=True))


@pytest.mark.parametrize("name", WITH_SIBLINGS)
def test_equal_rewards_teach_nothing(name):
    assert not score(name, [[0.7] * 4, [0.1]]).any()


def test_only_gae_says_that_it_needs_a_critic():
    assert tuple(name for name in ADVANTAGES if registry.load(algorithm(advantage=name)).advantage.critic) == WITH_CRITIC


@given(answers=ANSWERS, gamma=st.floats(0.1, 1))
def test_returns_are_the_twins(answers, gamma):
    rewards = tokens(answers)
    expected = np.concatenate([numpy_twin.returns(a.advantage, gamma=gamma) for a in answers])
    np.testing.assert_allclose(returns(rewards.advantage_R, rewards.sample_R, gamma=gamma), expected, rtol=1e-9, atol=1e-9)


def test_the_last_trained_token_has_the_score_and_each_its_penalty():
    mask, sample = torch.tensor([1, 1, 0, 1, 0, 0]) > 0, torch.tensor([0, 0, 0, 1, 1, 2])
    worth, penalty = torch.tensor([8.0, 8, 8, 4, 4, 2]), torch.tensor([1.0, 2, 4, 8, 16, 32])
    discounted = credit(worth, penalty, mask, sample, discounted=True, gamma=0.5)
    assert discounted.tolist() == [2.0, 6.0, 0.0, -4.0, 0.0, 0.0]
    assert credit(worth, penalty, mask, sample, discounted=False, gamma=0.5).tolist() == [7.0, 6.0, 8.0, -4.0, 4.0, 2.0]
    assert credit(worth[:0], None, mask[:0], sample[:0], discounted=True, gamma=0.5).tolist() == []


@given(ranks=st.lists(ANSWERS, min_size=1, max_size=3))
def test_whitening_is_the_twins_however_answers_are_spread_over_ranks(ranks):
    """The ranks of a collective take turns: each phase's sums are gathered from all of them before any goes on."""
    own = [tokens(answers) for answers in ranks]
    expected = numpy_twin.whiten([a.advantage for answers in ranks for a in answers], [a.mask for answers in ranks for a in answers])
    sums: list[list[torch.Tensor]] = []

    def run(rank: int, known: list[torch.Tensor]) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def sum_ranks(values: torch.Tensor) -> torch.Tensor:
            seen.append(values)
            return known[len(seen) - 1] if len(seen) <= len(known) else values

        result = whiten(own[rank].advantage_R, own[rank].mask_R, sum_ranks)
        sums.append(seen)
        return result

    known: list[torch.Tensor] = []
    for phase in range(2):
        sums.clear()
        for rank in range(len(own)):
            run(rank, known)
        known.append(torch.stack([seen[phase] for seen in sums]).sum(0))
    whitened = torch.cat([run(rank, known) for rank in range(len(own))])
    np.testing.assert_allclose(whitened, np.concatenate(expected), rtol=1e-5, atol=1e-5)


def test_whitened_tokens_have_mean_0_and_variance_1():
    values, mask = torch.tensor([1.0, 2, 3, 100]), torch.tensor([True, True, True, False])
    whitened = whiten(values, mask, lambda sums: sums)[mask]
    assert whitened.tolist() == pytest.approx([-1, 0, 1], abs=1e-6)


def test_whitening_equal_values_or_none_gives_0():
    ones = torch.ones(3)
    assert whiten(ones, ones > 0, lambda sums: sums).tolist() == [0, 0, 0]
    assert torch.isfinite(whiten(ones, ones < 0, lambda sums: sums)).all()
