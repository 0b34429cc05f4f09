"""The same training in plain PyTorch on the Hugging Face model, one unpacked sample at a time: what the trainer is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slime_hpc.algo import numpy_twin, registry
from slime_hpc.config.schema import Algorithm, Correction, Experiment
from slime_hpc.data.sample import Sample
from tests.trainer.plain_critic import PlainCritic
from tests.trainer.tiny import TEMPERATURE


def logprobs(model: Any, sample: Sample, temperature: float = TEMPERATURE) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy of the response tokens."""
    tokens = torch.from_numpy(np.concatenate([sample.prompt_tokens_P, sample.response_tokens_R]).astype(np.int64))
    first = len(sample.prompt_tokens_P)
    logp = (model(tokens[None]).logits[0, first - 1 : -1].float() / temperature).log_softmax(-1)
    return logp.gather(1, tokens[first:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def train(
    model: Any, samples: Sequence[Sample], experiment: Experiment, rates: Sequence[float | None], teacher: Any
) -> dict[str, list[float]]:
    """Train in place, one step at each rate; each step's losses (mean of updates) and largest gradient norms."""
    algorithm, updates = experiment.algorithm, experiment.trainer.updates_per_step
    optimizer = torch.optim.AdamW(_groups(model), lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    critic = PlainCritic(model, experiment.critic) if experiment.critic else None
    reference = [logprobs(model, s)[0].detach() for s in samples]
    taught = [logprobs(teacher, s)[0].detach() for s in samples] if teacher else None
    report: dict[str, list[float]] = {"loss": [], "grad_norm": [], "value_loss": [], "critic_grad_norm": []}
    for number, rate in enumerate(rates, 1):
        old = [logprobs(model, s)[0].detach() for s in samples]
        advantages, estimates = _advantages(samples, experiment, old, reference, taught, critic)
        if critic:
            loss, norm = critic.train(samples, estimates, updates)
            report["value_loss"].append(loss)
            report["critic_grad_norm"].append(norm)
            if number <= critic.section.warmup_steps:
                continue
        for group in optimizer.param_groups:
            group["lr"] = rate
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


def _advantages(
    samples: Sequence[Sample], experiment: Experiment, old: Any, reference: Any, taught: Any, critic: PlainCritic | None
) -> tuple[list[torch.Tensor], list[tuple[np.ndarray, ...]]]:
    """Of each token of each sample, with the KL penalty where it is part of the reward (k3); and the critic's estimates."""
    algorithm = experiment.algorithm
    advantage = registry.load(algorithm).advantage
    rewards, groups = np.array([s.reward for s in samples], np.float32).astype(np.float64), np.array([s.group for s in samples])
    scores = advantage.score(rewards, groups, normalize_std=algorithm.normalize_std)
    masks = [s.loss_mask_R.astype(np.float64) for s in samples]
    values, estimates = [], []
    for sample, score, mask, before, base in zip(samples, scores, masks, old, reference, strict=True):
        gap = (base - before).double().numpy()
        penalty = algorithm.kl_coef * (np.exp(gap) - 1 - gap) * mask if algorithm.kl_in == "reward" else 0.0 * mask
        if critic:
            estimates.append(critic.estimates(sample, score, penalty, algorithm))
            values.append(estimates[-1][1])
        elif advantage.discounted:
            penalty[np.flatnonzero(mask)[-1]] -= score
            values.append(numpy_twin.returns(-penalty, gamma=algorithm.gamma))
        else:
            values.append(score - penalty)
    if taught:
        assert experiment.teacher is not None
        gaps = [(before - judged).double().numpy() for before, judged in zip(old, taught, strict=True)]
        values = [value - experiment.teacher.coef * gap * mask for value, gap, mask in zip(values, gaps, masks, strict=True)]
    if algorithm.whiten or advantage.whiten:
        values = numpy_twin.whiten(values, masks)
    return [torch.from_numpy(value).float() for value in values], estimates


def _loss(model: Any, samples: Any, members: list[int], advantages: Any, old: Any, reference: Any, algorithm: Algorithm) -> torch.Tensor:
    total, weight = torch.zeros(()), 0.0
    for i in members:
        new, entropy = logprobs(model, samples[i])
        mask = torch.from_numpy(samples[i].loss_mask_R.astype(np.float32))
        token = _policy_loss(new, old[i], advantages[i], mask, algorithm) * _weight(samples[i], old[i], mask, algorithm.correction)
        token = token - algorithm.entropy_coef * entropy
        if algorithm.kl_in == "loss":
            gap = reference[i] - new
            ratio = (new - old[i]).exp() if algorithm.kl_unbiased else 1.0
            token = token + algorithm.kl_coef * (gap.exp() - 1 - gap) * ratio
        count = float(mask.sum())
        divisor = {"token": 1.0, "sample": count, "rollout": count, "constant": float(algorithm.loss_length)}[algorithm.loss_mean]
        total = total + (token * mask).sum() / divisor
        weight += float(mask.sum()) if algorithm.loss_mean == "token" else 1.0
    return total / weight


def _policy_loss(new: Any, old: Any, advantage: Any, mask: Any, algorithm: Algorithm) -> torch.Tensor:
    if algorithm.loss == "sft":
        return -new
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    if algorithm.loss == "cispo":
        return -(new - old).exp().clamp(low, high).detach() * advantage * new
    log_ratio = new - old if algorithm.loss == "ppo_clip" else ((new - old) * mask).sum() / mask.sum()
    return -torch.min(log_ratio.exp() * advantage, log_ratio.exp().clamp(low, high) * advantage)


def _weight(sample: Sample, old: torch.Tensor, mask: torch.Tensor, correction: Correction) -> torch.Tensor:
    """TIS, and rejection by the geometric mean."""
    log_ratio = old - torch.from_numpy(sample.logprobs_R)
    weight = log_ratio.exp().clamp(max=correction.high) if correction.kind == "tis" else torch.ones_like(log_ratio)
    mean = float(((log_ratio * mask).sum() / mask.sum()).exp())
    rejected = correction.reject == "geometric" and not correction.reject_low <= mean <= correction.reject_high
    return weight * (0.0 if rejected else 1.0)
