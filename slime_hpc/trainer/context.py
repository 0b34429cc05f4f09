"""Context parallelism over packed sequences: which tokens each rank holds (pure), and the collectives between the ranks.

Every sequence of L tokens is cut into 2 n chunks, and rank r holds chunks r and 2n - 1 - r: the causal attention of all ranks costs alike
(Llama 3, arXiv 2407.21783, section 3.3.2). Sequences need not divide: chunks differ by a token, and each rank's share is padded at its end.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region


@dataclass(frozen=True, slots=True)
class Span:
    """A run of query tokens in a rank's share, and the tokens of the whole pack that the last of them sees: start to end."""

    query: int
    count: int
    start: int
    end: int


@functools.lru_cache(maxsize=256)
def spans(offsets: tuple[int, ...], rank: int, size: int) -> tuple[Span, ...]:
    """The spans of a rank's share, in order. With one rank each sequence is a span."""
    found, place = [], 0
    for start, end in itertools.pairwise(offsets):
        cuts = [start + (end - start) * i // (2 * size) for i in range(2 * size + 1)] if size > 1 else [start, end]
        for chunk in (rank, 2 * size - 1 - rank) if size > 1 else (0,):
            count = cuts[chunk + 1] - cuts[chunk]
            if count:
                found.append(Span(place, count, start, cuts[chunk + 1]))
                place += count
    return tuple(found)


@functools.lru_cache(maxsize=256)
def places(offsets: tuple[int, ...], rank: int, size: int, multiple: int) -> torch.Tensor:
    """(T,): each token's index in the whole pack; -1 for padding, which makes T alike on all ranks and a multiple of `multiple`."""
    longest = max(sum(span.count for span in spans(offsets, other, size)) for other in range(size))
    result = torch.full((-(-longest // multiple) * multiple,), -1)
    for span in spans(offsets, rank, size):
        result[span.query : span.query + span.count] = torch.arange(span.end - span.count, span.end)
    return result


@functools.lru_cache(maxsize=256)
def positions(offsets: tuple[int, ...], rank: int, size: int, length: int) -> torch.Tensor:
    """(length,): each token's position in its own sequence, 0 for padding."""
    result = torch.zeros(length, dtype=torch.int64)
    for span in spans(offsets, rank, size):
        result[span.query : span.query + span.count] = torch.arange(span.end - span.count, span.end) - span.start
    return result


@functools.lru_cache(maxsize=256)
def _order(offsets: tuple[int, ...], size: int, length: int) -> torch.Tensor:
    """(tokens of the pack,): where each of them stands among all ranks' shares, one behind the other."""
    result = torch.empty(offsets[-1], dtype=torch.int64)
    for rank in range(size):
        for span in spans(offsets, rank, size):
            result[span.end - span.count : span.end] = rank * length + torch.arange(span.query, span.query + span.count)
    return result


def gather(share: torch.Tensor, offsets: tuple[int, ...], group: Any) -> torch.Tensor:
    """All ranks' shares (T, ...) as the whole pack, in its order; backward sums each rank's part of the gradient."""
    everything = gather_from_sequence_parallel_region(share, tensor_parallel_output_grad=True, group=group)
    return everything.index_select(0, _order(offsets, group.size(), share.size(0)).to(share.device))


class _Complete(torch.autograd.Function):
    """Sum of all ranks' tensors; every rank computes the same of it, so the gradient of its own part is the sum's."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


def complete(own: torch.Tensor, index: torch.Tensor, length: int, group: Any) -> torch.Tensor:
    """(rows, length) from each rank's columns, which stand at `index`: all ranks hold all of them."""
    whole = own.new_zeros(own.size(0), length).index_copy(1, index, own)
    result: torch.Tensor = _Complete.apply(whole, group)
    return result
