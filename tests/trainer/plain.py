"""The same training in plain PyTorch on the Hugging Face model, one unpacked sample at a time: what the trainer is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slime_hpc.algo.advantage import grpo
from slime_hpc.config.schema import Algorithm
from slime_hpc.data.sample import Sample
from tests.trainer.tiny import TEMPERATURE


def logprobs(model: Any, sample: Sample, temperature: float = TEMPERATURE) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy of the response tokens."""
    tokens = torch.from_numpy(np.concatenate([sample.prompt_tokens_P, sample.response_tokens_R]).astype(np.int64))
    first = len(sample.prompt_tokens_P)
    logp = (model(tokens[None]).logits[0, first - 1 : -1].float() / temperature).log_softmax(-1)
    return logp.gather(1, tokens[first:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def train(model: Any, samples: Sequence[Sample], algorithm: Algorithm, updates: int, rates: Sequence[float]) -> dict[str, list[float]]:
    """Train in place, one step for each rate; the losses (last update of a step excepted, mean of updates) and largest gradient norms."""
    optimizer = torch.optim.AdamW(_groups(model), lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    reference = [logprobs(model, s)[0].detach() for s in samples]
    rewards = np.array([s.reward for s in samples], np.float32)
    advantages = grpo(rewards, np.array([s.group for s in samples], np.int64), normalize_std=algorithm.normalize_std)
    report: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        old = [logprobs(model, s)[0].detach() for s in samples]
        losses, norms = [], []
        for members in np.array_split(np.arange(len(samples)), updates):
            optimizer.zero_grad()
            loss = _loss(model, samples, members.tolist(), advantages, old, reference, algorithm)
            loss.backward()
            losses.append(float(loss.detach()))
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
        report["loss"].append(sum(losses) / updates)
        report["grad_norm"].append(max(norms))
    return report


def _groups(model: Any) -> list[dict[str, Any]]:
    """Norms and biases are not decayed."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]


def _loss(model: Any, samples: Any, members: list[int], advantages: Any, old: Any, reference: Any, algorithm: Algorithm) -> torch.Tensor:
    total, weight = torch.zeros(()), 0.0
    for i in members:
        new, entropy = logprobs(model, samples[i])
        mask = torch.from_numpy(samples[i].loss_mask_R.astype(np.float32))
        ratio = (new - old[i]).exp()
        clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        token = -torch.min(ratio * float(advantages[i]), clipped * float(advantages[i])) - algorithm.entropy_coef * entropy
        gap = reference[i] - new
        token = token + algorithm.kl_coef * (gap.exp() - 1 - gap)
        if algorithm.loss_mean == "token":
            total, weight = total + (token * mask).sum(), weight + float(mask.sum())
        else:
            total, weight = total + (token * mask).sum() / mask.sum(), weight + 1
    return total / weight
