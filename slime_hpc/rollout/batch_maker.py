"""One batch: take prompts, generate a group of answers to each, score them, collate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slime_hpc.config.schema import Experiment
from slime_hpc.data.batch import Batch
from slime_hpc.data.collate import collate
from slime_hpc.data.prompt import Prompt, PromptSource
from slime_hpc.data.sample import Finish, Sample
from slime_hpc.data.tokenize import Tokenizer, encode_prompt
from slime_hpc.plan.model_config import read_model_config
from slime_hpc.rollout.generate import Answer, Generator, Request, sample_seed
from slime_hpc.rollout.reward import Scorer
from slime_hpc.rollout.reward_worker import Score


@dataclass(frozen=True, slots=True)
class Made:
    """A batch and the numbers of its event."""

    batch: Batch
    metrics: dict[str, float]


class BatchMaker:
    """Makes the batch of a step."""

    def __init__(self, experiment: Experiment, tokenizer: Tokenizer, source: PromptSource, generator: Generator, scorer: Scorer) -> None:
        self._experiment = experiment
        self._tokenizer = tokenizer
        self._source = source
        self._generator = generator
        self._scorer = scorer
        self._experts = _experts(experiment) if experiment.algorithm.route_replay else None

    async def make(self, step: int, weight_version: int) -> Made:
        """Generate with the weights that the engines hold. Raises EngineError."""
        rollout = self._experiment.rollout
        prompts = self._source.take(rollout.prompts_per_step)
        requests = self._requests(prompts)
        retries = self._generator.counts.retries
        start = time.monotonic()
        answers = await self._generator.generate(requests)
        generated = time.monotonic()
        by_group = dict(prompts)
        items = [(by_group[r.group], answer.text, answer.finish) for r, answer in zip(requests, answers, strict=True)]
        scores = await asyncio.to_thread(self._scorer.score, items)
        seconds = {"seconds_generate": generated - start, "seconds_reward": time.monotonic() - generated}
        samples = [_sample(r, a, s) for r, a, s in zip(requests, answers, scores, strict=True)]
        batch = collate(samples, step=step, weight_version=weight_version)
        metrics = {**_metrics(batch, rollout.samples_per_prompt), **seconds, "retries": self._generator.counts.retries - retries}
        return Made(batch, metrics)

    def _requests(self, prompts: Sequence[tuple[int, Prompt]]) -> list[Request]:
        experiment, rollout = self._experiment, self._experiment.rollout
        requests = []
        for group, prompt in prompts:
            tokens = encode_prompt(self._tokenizer, prompt, chat=experiment.data.chat)
            requests += [
                Request(
                    group=group, index=index, prompt_tokens=tokens, temperature=rollout.temperature, max_tokens=rollout.max_tokens,
                    seed=sample_seed(experiment.seed, group, index), experts=self._experts,
                )
                for index in range(rollout.samples_per_prompt)
            ]  # fmt: skip
        return requests


def _experts(experiment: Experiment) -> tuple[int, int] | None:
    """(layers, experts a token) of the model; None for one without experts."""
    model = read_model_config(Path(experiment.model.path), needs_weights=False)
    return (model.num_layers, model.experts.top_k) if model.experts else None


def _sample(request: Request, answer: Answer, score: Score) -> Sample:
    return Sample(
        group=request.group,
        index=request.index,
        prompt_tokens_P=np.array(request.prompt_tokens, np.int32),
        response_tokens_R=np.array(answer.tokens, np.int32),
        logprobs_R=np.array(answer.logprobs, np.float32),
        loss_mask_R=np.ones(len(answer.tokens), np.uint8),
        reward=score.value,
        reward_failed=score.failed,
        finish=answer.finish,
        weight_version=answer.weight_version,
        weight_version_last=answer.weight_version_last,
        text=answer.text,
        routes_TLK=answer.routes_TLK,
    )


def _metrics(batch: Batch, samples_per_prompt: int) -> dict[str, float]:
    rewards = batch.reward_N.reshape(-1, samples_per_prompt)
    return {
        "samples": batch.num_samples,
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "groups_with_spread": int((rewards.std(axis=1) > 0).sum()),
        "response_tokens": int(batch.response_offsets[-1]),
        "response_tokens_mean": float(batch.response_lengths_N.mean()),
        "truncated": int((batch.finish_N == Finish.LENGTH).sum()),
        "reward_failed": int(batch.reward_failed_N.sum()),
        "weight_version": batch.weight_version,
        "staleness": int(batch.step - 1 - batch.weight_version_N.min()),
    }
