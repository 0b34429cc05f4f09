"""Reward 1 for a mathematically equal answer, else 0, by math-verify."""

from __future__ import annotations

from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.rollout.rewards.answer import Extract, extract


def score(prompt: Prompt, text: str, finish: Finish, *, take: Extract = "all") -> float:
    """Parse both sides (LaTeX, boxed or plain expressions) and compare their values."""
    from math_verify import parse, verify

    # The scorer bounds the time; math-verify's own limit relies on signals of the main thread.
    gold = parse(f"${prompt.answer}$", parsing_timeout=None)
    found = parse(extract(text, take), parsing_timeout=None)
    return float(verify(gold, found, timeout_seconds=None))
