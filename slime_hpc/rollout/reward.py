"""Scoring answers: one registry of reward kinds, and a scorer that no reward can stop.

A reward is called as f(prompt, text, finish, **options) and returns a number. Each call runs in a worker process with a deadline:
a reward that raises, returns no finite number, hangs or kills its process marks that sample as failed with reward 0, and the run goes on.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from slime_hpc.config import names
from slime_hpc.config.schema import Reward
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish

REWARDS = {
    "math": "slime_hpc.rollout.rewards.mathematics:score",
    "exact": "slime_hpc.rollout.rewards.exact:score",
    "reasoning_gym": "slime_hpc.rollout.rewards.gym:score",
}

Item = tuple[Prompt, str, Finish]


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one answer."""

    value: float
    error: str = ""
    """Why it could not be scored; `value` is then 0."""

    @property
    def failed(self) -> bool:
        """The reward raised, ran out of time, or returned no finite number."""
        return bool(self.error)


class Scorer:
    """Scores answers in worker processes."""

    def __init__(self, reward: Reward, *, workers: int) -> None:
        self._reference = REWARDS.get(reward.kind, reward.kind)
        names.load(self._reference, where="reward.kind")
        self._options = reward.options
        self._timeout_s = reward.timeout_s
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score an item, in order. Blocks; never raises for what a reward does."""
        scores: list[Score | None] = [None] * len(items)
        # Samples behind one that hung or crashed are tried again; it alone is marked, so every round gets at least one further.
        while (missing := [i for i, score in enumerate(scores) if score is None]) != []:
            self._round(items, scores, missing)
        return [score for score in scores if score is not None]

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._kill_pool()

    def _round(self, items: Sequence[Item], scores: list[Score | None], missing: list[int]) -> None:
        pool = self._pool = self._pool or self._new_pool()
        chunk = max(1, len(missing) // (4 * self._workers))
        parts = [missing[start : start + chunk] for start in range(0, len(missing), chunk)]
        futures = {}
        for part in parts:
            futures[pool.submit(_score_all, self._reference, self._options, [items[i] for i in part])] = part
        for future, part in futures.items():
            if not self._collect(future, part, scores):
                self._kill_pool()
                if len(part) > 1:
                    self._one_by_one(items, scores, part)
                return

    def _collect(self, future: Future[list[Score]], part: list[int], scores: list[Score | None]) -> bool:
        """Take a chunk's scores; False when its process hung or died."""
        try:
            # A chunk may wait for earlier ones of the same worker, so it gets the time of all samples before it.
            for i, score in zip(part, future.result(timeout=self._timeout_s * len(part)), strict=True):
                scores[i] = score
        except (FutureTimeout, BrokenProcessPool) as error:
            if len(part) == 1:
                scores[part[0]] = Score(0.0, _why(error, self._timeout_s))
            return False
        return True

    def _one_by_one(self, items: Sequence[Item], scores: list[Score | None], part: list[int]) -> None:
        for i in part:
            pool = self._pool = self._pool or self._new_pool()
            if not self._collect(pool.submit(_score_all, self._reference, self._options, [items[i]]), [i], scores):
                self._kill_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, mp_context=multiprocessing.get_context("spawn"))

    def _kill_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


def make_scorer(reward: Reward, *, workers: int) -> Scorer:
    """The scorer of an experiment. Raises ConfigError when the reward cannot be imported."""
    return Scorer(reward, workers=workers)


def _why(error: Exception, timeout_s: float) -> str:
    if isinstance(error, BrokenProcessPool):
        return "the reward ended its process"
    return f"the reward took longer than {timeout_s:g} s (reward.timeout_s)"


def _score_all(reference: str, options: dict[str, Any], items: list[Item]) -> list[Score]:
    """Runs in a worker process."""
    function = names.load(reference, where="reward.kind")
    return [_score_one(function, options, item) for item in items]


def _score_one(function: Any, options: dict[str, Any], item: Item) -> Score:
    try:
        value = float(function(*item, **options))
    except Exception as error:
        # Whatever user code raises is that sample's failure, never the run's.
        return Score(0.0, f"{type(error).__name__}: {error}")
    return Score(value) if math.isfinite(value) else Score(0.0, f"the reward returned {value}")
