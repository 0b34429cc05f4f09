"""Pass rate on held-out problems: one answer each, scored as in training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from slime_hpc.config.schema import Experiment
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.tokenize import Tokenizer, encode_prompt
from slime_hpc.rollout.generate import Generator, Request, sample_seed
from slime_hpc.rollout.reward import Scorer


class Evaluator:
    """Evaluates the weights that the engines hold."""

    def __init__(
        self, experiment: Experiment, tokenizer: Tokenizer, prompts: Sequence[Prompt], generator: Generator, scorer: Scorer
    ) -> None:
        self._experiment = experiment
        self._prompts = prompts
        self._tokens = [encode_prompt(tokenizer, prompt, chat=experiment.data.chat) for prompt in prompts]
        self._generator = generator
        self._scorer = scorer

    def due(self, step: int) -> bool:
        """Whether a step (0: before the first) is followed by an evaluation."""
        section = self._experiment.eval
        if section is None:
            return False
        return step in (0, self._experiment.steps) or (section.interval > 0 and step % section.interval == 0)

    async def evaluate(self) -> dict[str, float]:
        """`pass_rate` (mean reward), `problems`, `seconds`."""
        section = self._experiment.eval
        assert section is not None
        start = time.monotonic()
        requests = [
            Request(
                group=index, index=0, prompt_tokens=tokens, temperature=section.temperature,
                max_tokens=self._experiment.rollout.max_tokens, seed=sample_seed(self._experiment.seed, index, -1),
            )
            for index, tokens in enumerate(self._tokens)
        ]  # fmt: skip
        answers = await self._generator.generate(requests)
        items = [(prompt, answer.text, answer.finish) for prompt, answer in zip(self._prompts, answers, strict=True)]
        scores = await asyncio.to_thread(self._scorer.score, items)
        rate = sum(score.value for score in scores) / len(scores)
        return {"pass_rate": rate, "problems": len(scores), "seconds": time.monotonic() - start}
