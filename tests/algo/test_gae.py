"""Generalized advantage estimation and the value loss, against the twin and in closed form."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.algo import numpy_twin
from slime_hpc.algo.gae import gae
from slime_hpc.algo.value_loss import value_loss
from tests.algo.answers import ANSWERS, tokens

UNIT = st.floats(0, 1)
VALUE = st.floats(-3, 3)


@given(answers=ANSWERS, gamma=st.floats(0.1, 1), lam=UNIT)
def test_advantages_and_returns_are_the_twins(answers, gamma, lam):
    flat = tokens(answers)
    own = gae(flat.advantage_R, flat.old_logprob_R, flat.mask_R, flat.sample_R, gamma=gamma, lam=lam)
    expected = [numpy_twin.gae(a.advantage, a.old, a.mask, gamma=gamma, lam=lam) for a in answers]
    for values, twins in zip(own, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(values, np.concatenate(twins), rtol=1e-6, atol=1e-6)


@given(answers=ANSWERS, gamma=st.floats(0.1, 1), lam=UNIT, order=st.randoms())
def test_an_answers_advantages_do_not_depend_on_the_others(answers, gamma, lam, order):
    shuffled = list(answers)
    order.shuffle(shuffled)
    for own in (answers, shuffled):
        flat = tokens(own)
        together, _ = gae(flat.advantage_R, flat.old_logprob_R, flat.mask_R, flat.sample_R, gamma=gamma, lam=lam)
        for answer, part in zip(own, together.split([len(a.new) for a in own]), strict=True):
            alone = tokens([answer])
            single, _ = gae(alone.advantage_R, alone.old_logprob_R, alone.mask_R, alone.sample_R, gamma=gamma, lam=lam)
            torch.testing.assert_close(single, part)


@given(answers=ANSWERS, gamma=st.floats(0.1, 1))
def test_with_lambda_1_the_return_does_not_depend_on_the_critic(answers, gamma):
    flat = tokens(answers)
    returns = [
        gae(flat.advantage_R, values, flat.mask_R, flat.sample_R, gamma=gamma, lam=1.0)[1]
        for values in (flat.old_logprob_R, torch.zeros_like(flat.old_logprob_R))
    ]
    torch.testing.assert_close(*returns)


def one(rewards, values, mask=None):
    reward_R, value_R = torch.tensor(rewards), torch.tensor(values)
    mask_R = torch.ones(len(rewards), dtype=torch.bool) if mask is None else torch.tensor(mask) > 0
    return reward_R, value_R, mask_R, torch.zeros(len(rewards), dtype=torch.long)


def test_closed_form():
    """delta = [0 + .5 * 2 - 1, 0 + .5 * 4 - 2, 8 - 4] = [0, 0, 4]; each step back is worth gamma lambda = .25."""
    advantage, target = gae(*one([0.0, 0.0, 8.0], [1.0, 2.0, 4.0]), gamma=0.5, lam=0.5)
    assert advantage.tolist() == [0.25, 1.0, 4.0]
    assert target.tolist() == [1.25, 3.0, 8.0]


def test_with_lambda_0_it_is_the_error_of_one_step():
    assert gae(*one([0.0, 0.0, 8.0], [1.0, 2.0, 4.0]), gamma=1.0, lam=0.0)[0].tolist() == [1.0, 2.0, 4.0]


def test_a_critic_that_knows_the_reward_leaves_no_advantage():
    assert gae(*one([0.0, 0.0, 8.0], [8.0, 8.0, 8.0]), gamma=1.0, lam=0.3)[0].tolist() == [0.0, 0.0, 0.0]


def test_masked_tokens_are_passed_over():
    advantage, target = gae(*one([0.0, 99.0, 8.0], [1.0, 99.0, 4.0], [1, 0, 1]), gamma=0.5, lam=0.5)
    assert advantage.tolist() == [2.0, 0.0, 4.0]
    assert target.tolist() == [3.0, 0.0, 8.0]


@given(value=VALUE, old=VALUE, target=VALUE, clip=st.sampled_from([0.0, 0.2012345678, 1.0012345678]))
def test_the_value_loss_and_its_gradient_are_the_twins(value, old, target, clip):
    own = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    loss, _ = value_loss(own, torch.tensor([old], dtype=torch.float64), torch.tensor([target], dtype=torch.float64), clip=clip)
    loss.sum().backward()
    expected, slope = numpy_twin.value_loss(value, old, target, clip=clip)
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    bounded = abs(value - old) > clip > 0
    # Where both squares are equal the derivative is any between the two.
    if not bounded or abs((old + np.clip(value - old, -clip, clip) - target) ** 2 - (value - target) ** 2) > 1e-9:
        assert own.grad.item() == pytest.approx(slope, abs=1e-9)


def test_a_value_gains_nothing_by_moving_beyond_the_bound():
    value, old, target = torch.tensor([0.1, 0.5, -0.5], requires_grad=True), torch.zeros(3), torch.ones(3)
    loss, clipped = value_loss(value, old, target, clip=0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.81 / 2, 0.64 / 2, 2.25 / 2])
    assert clipped.tolist() == [0, 1, 0]
    assert value.grad.tolist() == pytest.approx([-0.9, 0.0, -1.5])
