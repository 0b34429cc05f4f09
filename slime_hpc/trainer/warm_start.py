"""Supervised fine-tuning before the first RL step: cross-entropy on demonstrations, in an order that the seed fixes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from slime_hpc.algo.weighting import sample_mean, token_weights
from slime_hpc.config import names
from slime_hpc.config.schema import Experiment, WarmStart
from slime_hpc.data.collate import offsets
from slime_hpc.data.packing import schedule
from slime_hpc.data.prompt import Demonstration
from slime_hpc.data.tokenize import encode_demonstrations, load_tokenizer
from slime_hpc.errors import DataError
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.microbatch import MicroBatch
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy

_REPORTS = 20
"""Events of a warm start: enough for a curve."""


@dataclass(frozen=True, slots=True)
class _Demonstrations:
    """Tokenized demonstrations of one step, in the layout of a batch."""

    tokens_T: npt.NDArray[np.int32]
    token_offsets: npt.NDArray[np.int64]
    response_offsets: npt.NDArray[np.int64]


def run(experiment: Experiment, section: WarmStart, policy: Policy, place: Place, report: Callable[..., None]) -> None:
    """All steps. `report` gets the "warm_start" events. Raises DataError when there is no demonstration. Collective."""
    items: Sequence[Demonstration] = names.load(section.source, where="warm_start.source")(**section.options)
    if not items:
        raise DataError(f"{section.source} returned no demonstration.", where="warm_start.source", fix="see its options")
    tokenizer = load_tokenizer(Path(experiment.model.path))
    order = list(range(len(items)))
    random.Random(f"{experiment.seed}-warm_start").shuffle(order)
    trainer = experiment.trainer
    optimization = Optimization(
        policy, section.optimizer, steps=section.steps, max_skipped=trainer.max_skipped_updates, options=trainer.megatron
    )
    every = max(1, section.steps // _REPORTS)
    start = time.monotonic()
    for step in range(1, section.steps + 1):
        first = (step - 1) * section.samples_per_step
        chosen = [items[order[i % len(order)]] for i in range(first, first + section.samples_per_step)]
        loss = _step(_collate(encode_demonstrations(tokenizer, chosen)), experiment, policy, place)
        rate = optimization.step(step, what=f"step {step} of the warm start").rate
        if step % every == 0 or step == section.steps:
            meter = Meter(place, sums=("loss",), maxima=())
            meter.add("loss", loss)
            report("warm_start", step=step, loss=meter.join()["loss"], lr=rate, seconds=time.monotonic() - start)


def _step(data: _Demonstrations, experiment: Experiment, policy: Policy, place: Place) -> float:
    """Gradients of the mean over each answer's tokens, then over answers; this rank's part of that loss."""
    lengths = np.diff(data.token_offsets)
    samples = np.arange(len(lengths))
    tokens_cap = experiment.trainer.tokens_per_pack
    (update,) = schedule(lengths, samples, dp_size=place.dp_size, tokens_cap=tokens_cap, updates=1)
    mask_R = np.ones(int(data.response_offsets[-1]), np.uint8)
    weight_R = torch.from_numpy(token_weights(mask_R, data.response_offsets, samples.tolist(), sample_mean)).to(place.device)

    def cross_entropy(batch: MicroBatch, logprob_R: torch.Tensor, entropy_R: torch.Tensor) -> torch.Tensor:
        return -(logprob_R * weight_R[batch.index_R]).sum()

    batches = [policy.pack(data, members) for members in update.ranks[place.dp_rank]]
    return policy.backward(batches, cross_entropy, temperature=1.0)


def _collate(pairs: list[tuple[list[int], list[int]]]) -> _Demonstrations:
    return _Demonstrations(
        np.array([token for prompt, answer in pairs for token in (*prompt, *answer)], np.int32),
        offsets(len(prompt) + len(answer) for prompt, answer in pairs),
        offsets(len(answer) for _, answer in pairs),
    )
