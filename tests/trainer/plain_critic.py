"""A critic in plain PyTorch: a Hugging Face model's layers and one output, trained on one unpacked sample at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slime_hpc.algo import numpy_twin
from slime_hpc.config.schema import Algorithm, Critic
from slime_hpc.data.sample import Sample


class PlainCritic:
    """Begins as the model, with an output of 0."""

    def __init__(self, model: Any, section: Critic) -> None:
        self.section = section
        self.body = copy.deepcopy(model.model)
        self.head = torch.nn.Linear(model.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.head.weight)
        self.parameters = [*self.body.parameters(), *self.head.parameters()]
        optimizer = section.optimizer
        betas = (optimizer.beta1, optimizer.beta2)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=optimizer.lr, betas=betas, eps=optimizer.eps, weight_decay=0.0)

    def values(self, sample: Sample) -> torch.Tensor:
        """Of the state that each response token was drawn in."""
        tokens = torch.from_numpy(np.concatenate([sample.prompt_tokens_P, sample.response_tokens_R]).astype(np.int64))
        hidden = self.body(tokens[None]).last_hidden_state[0, len(sample.prompt_tokens_P) - 1 : -1]
        return self.head(hidden)[:, 0]

    def estimates(self, sample: Sample, score: float, penalty: np.ndarray, algorithm: Algorithm) -> tuple[np.ndarray, ...]:
        """Values, advantages and returns before the step."""
        value = self.values(sample).detach().double().numpy()
        mask = sample.loss_mask_R.astype(np.float64)
        reward = -penalty
        reward[np.flatnonzero(mask)[-1]] += score
        return value, *numpy_twin.gae(reward, value, mask, gamma=algorithm.gamma, lam=algorithm.gae_lambda)

    def train(self, samples: Sequence[Sample], estimates: Sequence[tuple[np.ndarray, ...]], updates: int) -> tuple[float, float]:
        """One step, in which each sample's mean over tokens counts alike: the mean of the updates' losses, and the largest norm."""
        losses, norms = [], []
        for members in np.array_split(np.arange(len(samples)), updates):
            self.optimizer.zero_grad()
            parts = []
            for i in members.tolist():
                now, mask = self.values(samples[i]), torch.from_numpy(samples[i].loss_mask_R.astype(np.float32))
                old, target = (torch.from_numpy(estimates[i][k]).float() for k in (0, 2))
                clip = self.section.value_clip
                squares = torch.maximum((now - target) ** 2, (old + (now - old).clamp(-clip, clip) - target) ** 2) / 2
                parts.append((squares * mask).sum() / mask.sum())
            loss = torch.stack(parts).mean()
            loss.backward()
            losses.append(float(loss.detach()))
            norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters, self.section.optimizer.clip_grad)))
            self.optimizer.step()
        return sum(losses) / updates, max(norms)
