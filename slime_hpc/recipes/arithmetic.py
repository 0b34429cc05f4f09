"""Sums and differences of one-digit numbers (reasoning-gym's chain_sum), in a plain-text few-shot format that a small model follows."""

from __future__ import annotations

import functools
import random
from typing import Any

from slime_hpc.data.prompt import Prompt

EXAMPLES = "3 + 4 = 7\n9 - 2 = 7\n5 + 8 = 13\n"
HELDOUT_FRACTION = 0.2


@functools.cache
def _items() -> tuple[tuple[str, dict[str, Any]], ...]:
    """All different problems (there are fewer than 200), in a fixed shuffled order, without the three that the format shows."""
    import reasoning_gym

    drawn = reasoning_gym.create_dataset("chain_sum", size=5000, seed=1234, min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    by_expression = {item["metadata"]["expression"]: item for item in drawn}
    expressions = sorted(expression for expression in by_expression if f"{expression} =" not in EXAMPLES)
    random.Random(7).shuffle(expressions)
    return tuple((expression, by_expression[expression]) for expression in expressions)


def prompts(*, split: str) -> list[Prompt]:
    """'heldout': a fifth of the problems, never trained on; 'train': the others."""
    items = _items()
    cut = int(len(items) * HELDOUT_FRACTION)
    chosen = items[:cut] if split == "heldout" else items[cut:]
    return [Prompt(content=f"{EXAMPLES}{expression} =", answer=item["answer"], metadata=item) for expression, item in chosen]
