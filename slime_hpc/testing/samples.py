"""Samples of given sizes, for tests."""

from __future__ import annotations

import numpy as np

from slime_hpc.data.sample import Finish, Sample


def make_sample(*, group: int = 0, index: int = 0, prompt: int = 3, response: int = 2, reward: float = 1.0, text: str = "yes") -> Sample:
    """A sample of `prompt` and `response` tokens, different from group to group."""
    first = 1000 * group + 10 * index
    return Sample(
        group=group,
        index=index,
        prompt_tokens_P=np.arange(first, first + prompt, dtype=np.int32),
        response_tokens_R=np.arange(first + 500, first + 500 + response, dtype=np.int32),
        logprobs_R=-np.arange(1, response + 1, dtype=np.float32),
        loss_mask_R=np.ones(response, np.uint8),
        reward=reward,
        reward_failed=False,
        finish=Finish.STOP,
        weight_version=0,
        weight_version_last=0,
        text=text,
    )
