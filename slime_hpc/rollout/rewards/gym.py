"""Reward of a reasoning-gym item by the data set's own verifier."""

from __future__ import annotations

import functools
from typing import Any

from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.rollout.rewards.answer import Extract, extract


def score(prompt: Prompt, text: str, finish: Finish, *, take: Extract = "all", threshold: float | None = None) -> float:
    """`prompt.metadata` is the item, with its data set in metadata["source_dataset"]; with `threshold` the score becomes 0 or 1."""
    item = dict(prompt.metadata)
    value = float(_dataset(item["metadata"]["source_dataset"]).score_answer(answer=extract(text, take), entry=item))
    return value if threshold is None else float(value >= threshold)


@functools.cache
def _dataset(name: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=0)
