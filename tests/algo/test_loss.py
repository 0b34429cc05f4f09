import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import loss, numpy_twin

TOKENS = st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3)), min_size=1, max_size=20)


@given(TOKENS, st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_ppo_clip_and_its_gradient(tokens: list[tuple[float, float, float]], low: float, high: float) -> None:
    new, old, advantage = np.array(tokens).T
    ratio = np.exp(new - old)
    # At the corners the derivative is not defined.
    tokens_off_corners = (np.abs(ratio - 1 - high) > 1e-6) & (np.abs(ratio - 1 + low) > 1e-6)
    logprob = torch.tensor(new, requires_grad=True)
    result = loss.ppo_clip(logprob, torch.tensor(old), torch.tensor(advantage), clip_low=low, clip_high=high)
    result.loss_R.sum().backward()
    expected, gradient = numpy_twin.ppo_clip(new, old, advantage, clip_low=low, clip_high=high)
    np.testing.assert_allclose(result.loss_R.detach(), expected, rtol=1e-9, atol=1e-12)
    assert logprob.grad is not None
    np.testing.assert_allclose(logprob.grad[tokens_off_corners], gradient[tokens_off_corners], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", loss.KL_ESTIMATORS)
@given(TOKENS)
def test_kl_estimators_and_their_gradients(name: str, tokens: list[tuple[float, float, float]]) -> None:
    new, reference, _ = np.array(tokens).T
    logprob = torch.tensor(new, requires_grad=True)
    value = loss.KL_ESTIMATORS[name](logprob, torch.tensor(reference))
    value.sum().backward()
    expected, gradient = getattr(numpy_twin, name)(new, reference)
    np.testing.assert_allclose(value.detach(), expected, rtol=1e-9, atol=1e-12)
    assert logprob.grad is not None
    np.testing.assert_allclose(logprob.grad, gradient, rtol=1e-9, atol=1e-12)


def test_k1_and_k3_estimate_the_divergence() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = (p * (p / q).log()).sum()
    for name in ("k1", "k3"):
        estimate = (p * loss.KL_ESTIMATORS[name](p.log(), q.log())).sum()
        torch.testing.assert_close(estimate, exact)


def test_clipped_tokens_are_counted() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.0]).log()
    advantage = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0])
    result = loss.ppo_clip(ratio, torch.zeros(5), advantage, clip_low=0.2, clip_high=0.2)
    assert result.clipped_R.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
