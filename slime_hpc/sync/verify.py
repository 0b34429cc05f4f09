"""Whether the engines hold the trainer's weights: the same greedy answers, with the same log-probs, and the right version.

The prompts are fixed numbers, not text, so that it works for any vocabulary. Knows nothing of how the weights came to the engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.engine_api import EngineApi, Engines
from slime_hpc.sync.session import attempt

Score = Callable[[list[list[int]]], list[list[float]]]
"""Token ids of sequences -> for each of them, the trainer's log-prob of every token but the first (temperature 1)."""
_PROMPT_LENGTHS = (3, 8, 21)
_NEW_TOKENS = 8
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one engine said to one prompt."""

    engine: str
    version: str
    sequence: tuple[int, ...]
    """Prompt and answer."""
    logprobs: tuple[float, ...]
    """Of the answer's tokens."""


def verify(engines: Sequence[Endpoint], token: str, *, version: int, vocab_size: int, score: Score, tolerance: float) -> float:
    """The largest difference of a log-prob between trainer and engines, over greedy answers to fixed prompts.

    Called on all trainer ranks together, as `score` is; every rank gets the same sequences, and the same result or error.
    Raises WeightPushError with the engine's name when an engine holds another version, or differs by more than `tolerance`.
    """
    answers: list[_Answer] = []
    failure = None
    if source.is_source():
        failure = attempt(lambda: answers.extend(_ask(engines, token, version, vocab_size)))
    source.agree(failure)
    sequences: list[list[int]] = json.loads(source.tell(json.dumps(sorted({answer.sequence for answer in answers}))))
    scored = {tuple(sequence): logprobs for sequence, logprobs in zip(sequences, score(sequences), strict=True)}
    largest = 0.0
    if source.is_source():
        differences = [(_difference(answer, scored[answer.sequence]), answer) for answer in answers]
        largest, worst = max(differences, key=lambda pair: pair[0])
        failure = _too_far(worst, scored[worst.sequence], tolerance) if not largest <= tolerance else None
    source.agree(failure)
    return float(source.tell(repr(largest)))


def prompts(vocab_size: int) -> list[list[int]]:
    """The fixed prompts: spread over the vocabulary, the same in every run."""
    return [[(length * 7919 + i * 104_729 + 17) % vocab_size for i in range(length)] for length in _PROMPT_LENGTHS]


def _ask(endpoints: Sequence[Endpoint], token: str, version: int, vocab_size: int) -> list[_Answer]:
    sampling = {"temperature": 0.0, "max_new_tokens": _NEW_TOKENS, "ignore_eos": True}

    def ask(engine: EngineApi) -> list[_Answer]:
        said = engine.weight_version(timeout_s=_TIMEOUT_S)
        _same_version(engine.name, said, version)
        return [_answer(engine, prompt, engine.generate(prompt, sampling, timeout_s=_TIMEOUT_S)) for prompt in prompts(vocab_size)]

    answers = [answer for part in Engines(endpoints, token).all(ask) for answer in part]
    for answer in answers:
        _same_version(answer.engine, answer.version, version)
    return answers


def _answer(engine: EngineApi, prompt: list[int], value: dict) -> _Answer:
    meta = value["meta_info"]
    return _Answer(
        engine=engine.name,
        version=str(meta["weight_version"]),
        sequence=(*prompt, *value["output_ids"]),
        logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
    )


def _same_version(engine: str, said: str, version: int) -> None:
    if said != str(version):
        raise WeightPushError(
            f"{engine} holds weight version '{said}', not '{version}'.", where=engine, fix="push again, or restart the engine"
        )


def _difference(answer: _Answer, scored: Sequence[float]) -> float:
    """Largest difference over the answer's tokens; infinite where one is not a number."""
    own = scored[-len(answer.logprobs) :]
    differences = [abs(a - b) for a, b in zip(answer.logprobs, own, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)


def _too_far(answer: _Answer, scored: Sequence[float], tolerance: float) -> WeightPushError:
    pairs = list(zip(answer.logprobs, scored[-len(answer.logprobs) :], strict=True))
    theirs, ours = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    return WeightPushError(
        f"{answer.engine} does not hold the trainer's weights: a greedy token has log-prob {theirs:.6f} there and {ours:.6f} "
        f"in the trainer (difference {abs(theirs - ours):.3g}, allowed {tolerance:.3g}).",
        where=answer.engine,
        fix="check the conversion to Hugging Face names, or raise sync.verify_tolerance for low-precision models",
    )
