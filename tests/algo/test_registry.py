import numpy as np
import pytest

from slime_hpc.algo import registry
from slime_hpc.algo.advantage import Advantage
from slime_hpc.algo.loss import TokenLoss
from slime_hpc.algo.weighting import token_weights
from slime_hpc.config import algorithms
from slime_hpc.errors import ConfigError
from tests.algo.answers import algorithm


def own_score(reward_N, group_N, *, normalize_std):
    return reward_N * 2


OWN_ADVANTAGE = Advantage(own_score)


def own_loss(tokens, algorithm):
    return TokenLoss(-tokens.logprob_R * algorithm.options["scale"], tokens.mask_R.float(), tokens.mask_R.float())


def own_reducer(count_S, rollout_S, *, length):
    return 1.0 / np.sqrt(count_S) / len(count_S)


@pytest.mark.parametrize("key", ["advantage", "loss", "loss_mean", "kl_estimator", "correction"])
def test_every_name_loads(key):
    registries = {
        "advantage": algorithms.ADVANTAGES,
        "loss": algorithms.LOSSES,
        "loss_mean": algorithms.REDUCERS,
        "kl_estimator": algorithms.KL_ESTIMATORS,
        "correction": algorithms.CORRECTIONS,
    }
    for name in registries[key]:
        assert registry.load(algorithm(**{key: {"kind": name} if key == "correction" else name}))


def test_own_parts_load():
    parts = registry.load(algorithm(advantage=f"{__name__}:OWN_ADVANTAGE", loss=f"{__name__}:own_loss", options={"scale": 3}))
    assert parts.loss is own_loss
    np.testing.assert_array_equal(parts.advantage.score(np.ones(2), np.zeros(2), normalize_std=True), [2, 2])


def test_an_own_mean_weighs_tokens():
    parts = registry.load(algorithm(loss_mean=f"{__name__}:own_reducer"))
    weights = token_weights(np.ones(5, np.uint8), np.array([0, 1, 5]), [0, 1], parts.reduce)
    np.testing.assert_allclose(weights, [0.5, 0.25, 0.25, 0.25, 0.25])


def test_an_own_advantage_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="is a function") as caught:
        registry.load(algorithm(advantage=f"{__name__}:own_score"))
    assert caught.value.where == "algorithm.advantage"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"loss": "ppo_clp"}, "Did you mean 'ppo_clip'"),
        ({"dual_clip": 0.9}, "'dual_clip' must be above 1"),
        ({"kl_unbiased": True, "kl_in": "reward"}, "'kl_unbiased' weighs the KL term of the loss"),
        ({"old_logprobs": "engine", "correction": {"kind": "tis"}}, "corrects for the engine already"),
    ],
)
def test_what_does_not_go_together_is_refused(values, what):
    with pytest.raises(ValueError, match=what):
        algorithm(**values)
