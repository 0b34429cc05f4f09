import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import kl, numpy_twin, registry
from slime_hpc.config.algorithms import KL_ESTIMATORS
from tests.algo.answers import algorithm

PAIRS = st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=20)


def estimator(name: str) -> kl.Estimator:
    return registry.load(algorithm(kl_estimator=name)).kl


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@given(PAIRS)
def test_an_estimate_and_its_gradient_are_the_twins(name, pairs):
    new, reference = np.array(pairs).T
    logprob = torch.tensor(new, requires_grad=True)
    value = estimator(name)(logprob, torch.tensor(reference))
    value.sum().backward()
    expected, gradient = getattr(numpy_twin, name)(new, reference)
    np.testing.assert_allclose(value.detach(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logprob.grad, gradient, rtol=1e-9, atol=1e-12)


P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("name", ["k1", "k3", "low_var_kl"])
def test_unbiased_estimators_estimate_the_divergence(name):
    torch.testing.assert_close((P * estimator(name)(P.log(), Q.log())).sum(), (P * (P / Q).log()).sum())


def test_the_largest_low_var_kl_is_10():
    value = estimator("low_var_kl")(torch.tensor([-30.0, -1.0]), torch.tensor([0.0, -1.0]))
    assert value.tolist() == [10.0, 0.0]


def test_weighing_by_the_ratio_makes_value_and_gradient_unbiased():
    """Tokens come from the old policy; the estimate is of the new one, and so is its gradient."""
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    new = logits.log_softmax(0)
    estimate = (P * kl.unbiased(kl.k3(new, Q.log()), new, P.log())).sum()
    exact = (new.exp() * (new - Q.log())).sum()
    torch.testing.assert_close(estimate, exact)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (estimate, exact)))
