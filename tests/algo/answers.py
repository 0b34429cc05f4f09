"""Answers drawn by hypothesis, as lists of arrays for the NumPy twin and as tokens for the torch versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from slime_hpc.algo.tokens import Tokens
from slime_hpc.config.schema import Algorithm

Array = np.ndarray


@dataclass(frozen=True)
class Answer:
    """One answer's tokens."""

    new: Array
    old: Array
    engine: Array
    advantage: Array
    mask: Array


def _answer(rows: Sequence[tuple[float, float, float, float, bool]]) -> Answer:
    new, old, engine, advantage, mask = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return Answer(new, old, engine, advantage, mask)


LOGPROB = st.floats(-5, 0)
ANSWER = st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, st.floats(-3, 3), st.booleans()), min_size=1, max_size=9).map(_answer)
ANSWERS = st.lists(ANSWER, min_size=1, max_size=5)


def tokens(answers: Sequence[Answer]) -> Tokens:
    """The same as flat tensors in double precision; `logprob_R` wants its gradient."""

    def flat(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(answer, name) for answer in answers]))

    return Tokens(
        logprob_R=flat("new").requires_grad_(),
        old_logprob_R=flat("old"),
        engine_logprob_R=flat("engine"),
        advantage_R=flat("advantage"),
        mask_R=flat("mask") > 0,
        sample_R=torch.repeat_interleave(torch.arange(len(answers)), torch.tensor([len(a.new) for a in answers])),
        num_samples=len(answers),
    )


def algorithm(**values: object) -> Algorithm:
    """An [algorithm] table."""
    return Algorithm.model_validate(values)
