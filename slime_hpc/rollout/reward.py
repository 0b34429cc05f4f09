"""Scoring answers: one registry of reward kinds, and a scorer that no reward can stop.

A reward is called as f(prompt, text, finish, **options) and returns a number. Each call runs in a worker process with a deadline:
a reward that raises, returns no finite number, hangs or kills its process marks that sample as failed with reward 0, and the run goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from slime_hpc.config import names
from slime_hpc.config.schema import Reward
from slime_hpc.rollout.reward_worker import Item, RewardWorker, Score

REWARDS = {
    "math": "slime_hpc.rollout.rewards.mathematics:score",
    "exact": "slime_hpc.rollout.rewards.exact:score",
    "reasoning_gym": "slime_hpc.rollout.rewards.gym:score",
}


class Scorer:
    """Scores answers in worker processes; to be closed, or they stay."""

    def __init__(self, reward: Reward, *, workers: int) -> None:
        self._reference = REWARDS.get(reward.kind, reward.kind)
        names.load(self._reference, where="reward.kind")
        self._options = reward.options
        self._timeout_s = reward.timeout_s
        self._most = workers
        self._workers: list[RewardWorker] = []
        self._idle: deque[RewardWorker] = deque()
        self._closed = False

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score an item, in order. Blocks; raises RunError when no worker comes up, never for what a reward does."""
        with ThreadPoolExecutor(self._most, thread_name_prefix="reward") as threads:
            return list(threads.map(self._one, items))

    def close(self) -> None:
        """End the worker processes, also those that score: the samples left are marked as failed."""
        self._closed = True
        for worker in self._workers:
            worker.kill()

    def _one(self, item: Item) -> Score:
        worker = self._take()
        if self._closed:
            worker.kill()
            return Score(0.0, "the scorer was closed")
        score = worker.score(item, timeout_s=self._timeout_s)
        if worker.alive:
            self._idle.append(worker)
        return score

    def _take(self) -> RewardWorker:
        """A worker that is idle, or a new one: there are as many as threads."""
        try:
            return self._idle.popleft()
        except IndexError:
            worker = RewardWorker(self._reference, self._options)
        self._workers.append(worker)
        return worker


def make_scorer(reward: Reward, *, workers: int) -> Scorer:
    """The scorer of an experiment. Raises ConfigError when the reward cannot be imported."""
    return Scorer(reward, workers=workers)
