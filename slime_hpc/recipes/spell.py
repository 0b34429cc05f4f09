"""The demo's task: spell a three-letter word backward (reasoning-gym's spell_backward), its demonstrations, and its tokenizer.

Three of four demonstrations copy the word instead of reversing it, so the supervised start plants two habits;
reinforcement learning then selects and sharpens the one that the verifier rewards. It does not discover a new skill.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, overload

from slime_hpc.data.prompt import Demonstration, Prompt

NUM_HELDOUT = 274


@functools.cache
def _items() -> tuple[dict[str, Any], ...]:
    """All different problems, in a fixed shuffled order."""
    import reasoning_gym

    drawn = reasoning_gym.create_dataset("spell_backward", size=60000, seed=1234, min_word_len=3, max_word_len=3)
    by_question: dict[str, dict[str, Any]] = {}
    for item in drawn:
        by_question.setdefault(item["question"], item)
    questions = sorted(by_question)
    random.Random(7).shuffle(questions)
    return tuple(by_question[question] for question in questions)


def prompts(*, split: str) -> list[Prompt]:
    """'heldout': 274 words that are never trained on, nor demonstrated; 'train': the other 1,096."""
    items = _items()[:NUM_HELDOUT] if split == "heldout" else _items()[NUM_HELDOUT:]
    return [Prompt(content=item["question"] + " ", answer=item["answer"], metadata=item) for item in items]


class Demonstrations(Sequence[Demonstration]):
    """Endless in effect: item i belongs to visit i // words of a word, and every visit draws anew whether it copies or reverses."""

    def __init__(self, *, copy_fraction: float, seed: int, visits: int) -> None:
        self._prompts = prompts(split="train")
        self._copy_fraction = copy_fraction
        self._seed = seed
        self._visits = visits

    def __len__(self) -> int:
        return len(self._prompts) * self._visits

    @overload
    def __getitem__(self, index: int) -> Demonstration: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Demonstration]: ...
    def __getitem__(self, index: int | slice) -> Demonstration | Sequence[Demonstration]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        prompt = self._prompts[index % len(self._prompts)]
        copies = random.Random(f"{self._seed}-{index}").random() < self._copy_fraction
        return Demonstration(prompt=str(prompt.content), completion=prompt.metadata["metadata"]["word"] if copies else prompt.answer)


def demonstrations(*, copy_fraction: float = 0.75, seed: int = 0, visits: int = 50) -> Demonstrations:
    """Supervised examples over the training words."""
    return Demonstrations(copy_fraction=copy_fraction, seed=seed, visits=visits)
