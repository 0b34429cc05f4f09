"""From samples to a batch: flat arrays with offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from slime_hpc.data.batch import Batch
from slime_hpc.data.sample import Sample
from slime_hpc.errors import DataError

S = TypeVar("S", bound=np.generic)


def offsets(lengths: Iterable[int]) -> npt.NDArray[np.int64]:
    """(N + 1,) running sums that start at 0."""
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, dtype=np.int64))]).astype(np.int64)


def collate(samples: Sequence[Sample], *, step: int, weight_version: int) -> Batch:
    """All samples of a step, in the order given. Raises DataError for a sample whose arrays do not fit together."""
    for sample in samples:
        _check(sample)
    # A token can end inside a character: what JSON then brings may hold lone surrogates, which UTF-8 has no bytes for.
    texts = [sample.text.encode(errors="replace") for sample in samples]
    tokens = [part for s in samples for part in (s.prompt_tokens_P, s.response_tokens_R)]
    return Batch(
        step=step,
        weight_version=weight_version,
        tokens_T=_join(tokens, np.int32),
        token_offsets=offsets(len(s.prompt_tokens_P) + len(s.response_tokens_R) for s in samples),
        response_offsets=offsets(len(s.response_tokens_R) for s in samples),
        logprobs_R=_join([s.logprobs_R for s in samples], np.float32),
        loss_mask_R=_join([s.loss_mask_R for s in samples], np.uint8),
        reward_N=np.array([s.reward for s in samples], np.float32),
        reward_failed_N=np.array([s.reward_failed for s in samples], np.uint8),
        group_N=np.array([s.group for s in samples], np.int64),
        index_N=np.array([s.index for s in samples], np.int32),
        finish_N=np.array([s.finish for s in samples], np.uint8),
        weight_version_N=np.array([s.weight_version for s in samples], np.int32),
        weight_version_last_N=np.array([s.weight_version_last for s in samples], np.int32),
        text_bytes=np.frombuffer(b"".join(texts), np.uint8),
        text_offsets=offsets(len(text) for text in texts),
        routes_TLK=_routes(samples),
    )


def _routes(samples: Sequence[Sample]) -> npt.NDArray[np.int16] | None:
    """Those of all samples, with a row of -1 for each one's last token; None when none has any."""
    given = [sample.routes_TLK for sample in samples if sample.routes_TLK is not None]
    if not given:
        return None
    shapes = {routes.shape[1:] for routes in given}
    if len(given) < len(samples) or len(shapes) > 1:
        raise DataError(
            f"{len(given)} of {len(samples)} samples have routes, of shapes {sorted(shapes)}.", where="routes_TLK", fix="see the engines"
        )
    return np.concatenate([np.pad(routes, ((0, 1), (0, 0), (0, 0)), constant_values=-1) for routes in given]).astype(np.int16)


def _join(parts: Sequence[npt.NDArray[S]], dtype: type[S]) -> npt.NDArray[S]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _check(sample: Sample) -> None:
    """One value too few would shift the values of every later sample."""
    tokens = len(sample.prompt_tokens_P) + len(sample.response_tokens_R)
    if sample.routes_TLK is not None and len(sample.routes_TLK) != tokens - 1:
        raise DataError(
            f"A sample of {tokens} tokens has the routes of {len(sample.routes_TLK)}; there must be one less than tokens.",
            where=f"group {sample.group}, answer {sample.index}",
            fix="see the engines; with rollout.sglang they may be told to leave routes out",
        )
    sizes = {"tokens": len(sample.response_tokens_R), "log-probs": len(sample.logprobs_R), "mask values": len(sample.loss_mask_R)}
    if len(set(sizes.values())) > 1:
        raise DataError(
            f"A response has {', '.join(f'{size} {what}' for what, size in sizes.items())}; the numbers must be equal.",
            where=f"group {sample.group}, answer {sample.index}",
            fix="correct what made the sample",
        )
