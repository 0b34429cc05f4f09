import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import numpy_twin, registry
from slime_hpc.config.algorithms import LOSSES
from tests.algo.answers import ANSWERS, Answer, algorithm, tokens

# At the corners the derivative is not defined; bounds of so many digits are met by no ratio that hypothesis tries.
BOUNDS = st.tuples(st.floats(0.0512345678912, 0.4123456789123), st.floats(0.0512345678912, 0.4123456789123))


def token_loss(name: str, answers: list[Answer], **values: object):
    table = algorithm(loss=name, **values)
    given_tokens = tokens(answers)
    result = registry.load(table).loss(given_tokens, table)
    torch.where(given_tokens.mask_R, result.loss_R, 0.0).sum().backward()
    return given_tokens, result


def agrees(name: str, answers: list[Answer], **bounds: float) -> None:
    given_tokens, result = token_loss(name, answers, **bounds)
    pairs = [getattr(numpy_twin, name)(a.new, a.old, a.advantage, a.mask, **bounds) for a in answers]
    np.testing.assert_allclose(result.loss_R.detach(), np.concatenate([loss for loss, _ in pairs]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(given_tokens.logprob_R.grad, np.concatenate([slope for _, slope in pairs]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@given(answers=ANSWERS, bounds=BOUNDS)
def test_a_loss_and_its_gradient_are_the_twins(name, answers, bounds):
    agrees(name, answers, clip_low=bounds[0], clip_high=bounds[1])


@pytest.mark.parametrize("name", ["ppo_clip", "gspo"])
@given(answers=ANSWERS, dual_clip=st.floats(1.1234567891, 5))
def test_dual_clip_and_its_gradient_are_the_twins(name, answers, dual_clip):
    agrees(name, answers, clip_low=0.2123456789, clip_high=0.2123456789, dual_clip=dual_clip)


@pytest.mark.parametrize("name", LOSSES)
@given(answers=ANSWERS, order=st.randoms())
def test_a_loss_does_not_depend_on_how_answers_are_packed(name, answers, order):
    """Whole, one answer at a time, or in another order: each answer's losses and gradients are the same."""
    together, result = token_loss(name, answers)
    sizes = [len(a.new) for a in answers]
    losses, slopes = result.loss_R.detach().split(sizes), together.logprob_R.grad.split(sizes)
    shuffled = list(range(len(answers)))
    order.shuffle(shuffled)
    for i in shuffled:
        alone, single = token_loss(name, [answers[i]])
        torch.testing.assert_close(single.loss_R.detach(), losses[i])
        torch.testing.assert_close(alone.logprob_R.grad, slopes[i])


def one(ratios: list[float], advantages: list[float]) -> list[Answer]:
    new = np.log(np.array(ratios))
    zeros = np.zeros_like(new)
    return [Answer(new, zeros, zeros, np.array(advantages), np.ones_like(new))]


def test_ppo_clip_in_closed_form():
    _, result = token_loss("ppo_clip", one([1.5, 0.5, 1.5, 0.5, 1.0], [1, -1, -1, 1, 1]), clip_low=0.2, clip_high=0.3)
    np.testing.assert_allclose(result.loss_R.detach(), [-1.3, 0.8, 1.5, -0.5, -1])
    assert result.clipped_R.tolist() == [1, 1, 0, 0, 0]
    np.testing.assert_allclose(result.ratio_R, [1.5, 0.5, 1.5, 0.5, 1.0])


def test_dual_clip_bounds_the_loss_of_bad_tokens_alone():
    _, result = token_loss("ppo_clip", one([9.0, 9.0], [-1, 1]), dual_clip=3.0)
    np.testing.assert_allclose(result.loss_R.detach(), [3, -1.2])


def test_gspo_takes_the_geometric_mean_of_ratios():
    answers, result = token_loss("gspo", one([4.0, 1.0], [1, 1]), clip_high=2.0)
    np.testing.assert_allclose(result.loss_R.detach(), [-2, -2])
    np.testing.assert_allclose(answers.logprob_R.grad, [-2, -2])


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    answers, result = token_loss("cispo", one([9.0, 0.1], [1, 1]), clip_low=1.0, clip_high=4.0)
    np.testing.assert_allclose(answers.logprob_R.grad, [-5, -0.1])
    assert result.clipped_R.tolist() == [1, 0]


def test_cross_entropy_knows_no_advantage():
    answers, result = token_loss("sft", one([2.0, 0.5], [-3, 7]))
    np.testing.assert_allclose(result.loss_R.detach(), [-np.log(2), np.log(2)])
    np.testing.assert_allclose(answers.logprob_R.grad, [-1, -1])


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "sft"])
@given(answers=ANSWERS)
def test_on_policy_every_loss_has_the_policy_gradient(name, answers):
    """With ratio 1 the gradient of the mean is that of -A log p; GSPO's gives each token the answer's mean advantage."""
    same = [Answer(a.new, a.new, a.engine, np.full_like(a.advantage, a.advantage[0]), a.mask) for a in answers]
    given_tokens, _ = token_loss(name, same)
    np.testing.assert_allclose(given_tokens.logprob_R.grad, np.concatenate([-a.advantage * a.mask for a in same]), atol=1e-12)
