"""The source of training prompts: shuffled epoch after epoch, without end, and able to go on from any point.

The order depends on the seed and the epoch alone, so the position is two integers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_hpc.config import names
from slime_hpc.config.schema import Data, Evaluation
from slime_hpc.data.prompt import Prompt, PromptSource
from slime_hpc.data.prompt_file import read_prompts
from slime_hpc.errors import ConfigError, DataError


class EpochSource(PromptSource):
    """Hands out a fixed list of prompts, epoch by epoch."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool) -> None:
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._taken = 0
        self._epoch = -1
        self._order: list[int] = []
        self._digest = _digest(prompts)

    def take(self, count: int) -> list[tuple[int, Prompt]]:
        """The next prompts with their group ids."""
        groups = range(self._taken, self._taken + count)
        self._taken += count
        return [(group, self._prompts[self._index(group)]) for group in groups]

    def state(self) -> dict[str, Any]:
        """Prompts taken, and what they are, so that other prompts are noticed."""
        return {"taken": self._taken, "prompts": len(self._prompts), "sha256": self._digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises DataError when the prompts are not those of the earlier run."""
        if (state["prompts"], state["sha256"]) != (len(self._prompts), self._digest):
            raise DataError(
                f"The run was started with {state['prompts']} prompts (sha256 {state['sha256']}); "
                f"now there are {len(self._prompts)} (sha256 {self._digest}).",
                where="data",
                fix="give the prompts of the first start, or begin a new run",
            )
        self._taken = int(state["taken"])

    def _index(self, group: int) -> int:
        epoch, position = divmod(group, len(self._prompts))
        if epoch != self._epoch:
            self._order = list(range(len(self._prompts)))
            if self._shuffle:
                random.Random(f"{self._seed}-{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._order[position]


def _digest(prompts: Sequence[Prompt]) -> str:
    """16 hexadecimal digits of the prompts, their answers and their order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.content, prompt.answer]).encode())
    return digest.hexdigest()[:16]


def load_prompts(section: Data | Evaluation, *, key: str, prompt_key: str = "prompt", answer_key: str = "answer") -> list[Prompt]:
    """The prompts a section names, by file or by 'module:function'. `key` is the section's name, for messages."""
    if section.prompts is not None:
        prompts = read_prompts(Path(section.prompts), prompt_key=prompt_key, answer_key=answer_key, where=f"{key}.prompts")
    else:
        assert section.source is not None
        make = names.load(section.source, where=f"{key}.source")
        try:
            inspect.signature(make).bind(**section.options)
        except TypeError as error:
            raise ConfigError(
                f"{section.source} does not take these options: {error}.", where=f"{key}.options", fix=f"it takes {inspect.signature(make)}"
            ) from error
        prompts = list(make(**section.options))
        if not prompts:
            raise DataError(f"{section.source} returned no prompt.", where=f"{key}.source", fix="see its options")
    limit = section.limit if isinstance(section, Evaluation) else 0
    return prompts[:limit] if limit else prompts


def make_source(data: Data, seed: int) -> PromptSource:
    """The source of an experiment's training prompts."""
    prompts = load_prompts(data, key="data", prompt_key=data.prompt_key, answer_key=data.answer_key)
    return EpochSource(prompts, seed=seed, shuffle=data.shuffle)
