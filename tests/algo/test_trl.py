"""Agreement with TRL's GRPOTrainer, whose losses and gradients `record_trl` wrote down."""

import json

import numpy as np
import pytest
import torch

from slime_hpc.algo import kl, registry
from slime_hpc.algo.correction import correct
from slime_hpc.algo.tokens import Tokens
from slime_hpc.algo.weighting import token_weights
from tests.algo import record_trl
from tests.algo.answers import algorithm

# TRL calls the bound of CISPO's weight itself what is 1 + clip_high here.
TABLES = {
    "grpo": {},
    "grpo-asymmetric": {"clip_low": 0.1, "clip_high": 0.3},
    "token-mean": {"loss_mean": "token"},
    "constant": {"loss_mean": "constant", "loss_length": 8},
    "dual-clip": {"dual_clip": 1.25},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.4, "loss_mean": "token"},
    "kl": {"kl_coef": 0.1},
    "kl-unbiased": {"kl_coef": 0.1, "kl_unbiased": True},
    "off-policy": {"correction": {"off_policy_kl": 0.1}},
}


@pytest.mark.parametrize("name", record_trl.CASES)
def test_loss_and_gradient_are_those_of_trl(name):
    expected = json.loads(record_trl.RECORD.read_text())["results"][name]
    data = record_trl.inputs()
    table = algorithm(**TABLES[name])
    inside = torch.zeros_like(data["mask"], dtype=torch.bool)
    for row, length in enumerate(record_trl.LENGTHS):
        inside[row, :length] = True
    lengths = torch.tensor(record_trl.LENGTHS)
    tokens = Tokens(
        logprob_R=data["new"][inside].requires_grad_(),
        old_logprob_R=data["old"][inside],
        engine_logprob_R=data["engine"][inside],
        advantage_R=data["advantages"].repeat_interleave(lengths),
        mask_R=data["mask"][inside] > 0,
        sample_R=torch.arange(len(lengths)).repeat_interleave(lengths),
        num_samples=len(lengths),
    )
    parts = registry.load(table)
    loss_R = parts.loss(tokens, table).loss_R * correct(tokens, table.correction, parts.weigh).weight_R
    if table.kl_coef:
        kl_R = parts.kl(tokens.logprob_R, data["reference"][inside])
        loss_R = loss_R + table.kl_coef * (kl.unbiased(kl_R, tokens.logprob_R, tokens.old_logprob_R) if table.kl_unbiased else kl_R)
    offsets = np.cumsum([0, *record_trl.LENGTHS])
    mask = tokens.mask_R.numpy().astype(np.uint8)
    weight_R = token_weights(mask, offsets, range(len(lengths)), parts.reduce, length=table.loss_length)
    loss = (loss_R * torch.from_numpy(weight_R)).sum()
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    np.testing.assert_allclose(tokens.logprob_R.grad[tokens.mask_R], expected["gradient"], atol=1e-6)


def test_the_cases_differ():
    """None of the options is without effect on the recorded answers."""
    losses = [result["loss"] for result in json.loads(record_trl.RECORD.read_text())["results"].values()]
    assert len({round(loss, 6) for loss in losses}) == len(losses)
