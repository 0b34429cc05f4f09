"""Reward 1 for exactly the reference answer, else 0."""

from __future__ import annotations

from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.rollout.rewards.answer import Extract, extract


def score(prompt: Prompt, text: str, finish: Finish, *, take: Extract = "all", require_stop: bool = False) -> float:
    """Compare what `take` extracts with the answer; with `require_stop` an answer cut off at the token limit gets 0."""
    if require_stop and finish is not Finish.STOP:
        return 0.0
    return float(extract(text, take) == prompt.answer.strip())
