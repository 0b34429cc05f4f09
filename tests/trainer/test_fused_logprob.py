"""The form for GPUs, run as plain torch, against autograd on whole logits."""

import pytest
import torch

from slime_hpc.trainer import fused_logprob, logprob

ROWS, HIDDEN, VOCAB = 37, 16, 101


def reference(hidden, weight, target, temperature):
    logp = (hidden @ weight.t() / temperature).log_softmax(-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("rows", [1, 10, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_autograds(monkeypatch, rows, temperature):
    monkeypatch.setattr(fused_logprob, "_FORWARD_BYTES", rows * VOCAB * 8)
    monkeypatch.setattr(fused_logprob, "_BACKWARD_BYTES", 2 * rows * VOCAB * 8)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64)
    target = torch.randint(0, VOCAB, (ROWS,), generator=generator)
    gradients, values = [], []
    for function in (lambda *a: fused_logprob.from_hidden(*a, temperature=temperature), lambda *a: reference(*a, temperature)):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logp, entropy = function(h, w, target)
        (logp * torch.arange(ROWS) + 0.3 * entropy**2).sum().backward()
        gradients.append((h.grad, w.grad))
        values.append((logp.detach(), entropy.detach()))
    for ours, theirs in zip((*values[0], *gradients[0]), (*values[1], *gradients[1]), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=1e-4)


def test_it_is_what_the_cpu_path_computes():
    generator = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(ROWS, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator)
    target = torch.randint(0, VOCAB, (ROWS,), generator=generator)
    for ours, cpu in zip(
        fused_logprob.from_hidden(hidden, weight, target, temperature=0.9),
        logprob.from_hidden(hidden, weight, target, temperature=0.9, group=None),
        strict=True,
    ):
        torch.testing.assert_close(ours, cpu, rtol=1e-5, atol=1e-5)


def test_ranks_with_parts_of_the_vocabulary_agree_on_the_whole():
    """The sums of two halves, moved to the higher peak by hand, are those of the whole."""
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(ROWS, 2 * VOCAB, generator=generator)
    target = torch.randint(0, 2 * VOCAB, (ROWS,), generator=generator)
    halves = [
        fused_logprob._statistics(half, torch.where((target >= first) & (target < first + VOCAB), target - first, -1), 1.0)
        for first, half in ((0, logits[:, :VOCAB]), (VOCAB, logits[:, VOCAB:]))
    ]
    highest = torch.maximum(halves[0][0], halves[1][0])
    total = sum(total * (peak - highest).exp() for peak, total, _, _ in halves)
    logp = halves[0][3] + halves[1][3] - highest - total.log()
    torch.testing.assert_close(logp, logits.log_softmax(-1).gather(1, target[:, None])[:, 0])
