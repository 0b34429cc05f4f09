"""The advantages of a whole stored batch at once, for those who look at it; the trainer's ranks each compute their share of the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slime_hpc.algo.advantage import credit, token_rewards, whiten
from slime_hpc.algo.gae import gae
from slime_hpc.algo.registry import load_advantage
from slime_hpc.config.schema import Algorithm
from slime_hpc.data.batch import Batch


def advantages(batch: Batch, algorithm: Algorithm) -> npt.NDArray[np.float32]:
    """(R,) advantages of the response tokens, without what needs models: KL penalty, teacher, critic (values 0). Raises ConfigError."""
    advantage = load_advantage(algorithm)
    score_N = advantage.score(batch.reward_N.astype(np.float64), batch.group_N, normalize_std=algorithm.normalize_std)
    lengths_N = batch.response_lengths_N
    score_R = torch.from_numpy(np.repeat(score_N.astype(np.float32), lengths_N))
    sample_R = torch.from_numpy(np.repeat(np.arange(batch.num_samples), lengths_N))
    mask_R = torch.from_numpy(batch.loss_mask_R.astype(bool))
    if advantage.critic:
        reward_R, value_R = token_rewards(score_R, None, mask_R, sample_R), torch.zeros_like(score_R)
        values_R, _ = gae(reward_R, value_R, mask_R, sample_R, gamma=algorithm.gamma, lam=algorithm.gae_lambda)
    else:
        values_R = credit(score_R, None, mask_R, sample_R, discounted=advantage.discounted, gamma=algorithm.gamma)
    if algorithm.whiten or advantage.whiten:
        values_R = whiten(values_R, mask_R, lambda sums: sums)
    result: npt.NDArray[np.float32] = values_R.numpy()
    return result
