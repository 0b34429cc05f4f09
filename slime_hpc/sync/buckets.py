"""Tensors in buckets: which ones travel together, and how they lie in the flat bytes of a bucket.

Tensors come in order; a bucket is closed when the next one would exceed the limit, or when experts follow other weights or the other way
round (they are assembled by other ranks). Within a bucket the larger elements come first, so that every tensor is aligned without padding:
the layout of SGLang's FlattenedTensorBucket. Larger than the limit is only a bucket of a single tensor.
Pure but for `flatten`, which copies; knows no transport.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

NamedTensor = tuple[str, torch.Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What an engine must know of a tensor before it receives it."""

    name: str
    dtype: str
    """As torch names it, without 'torch.'."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor."""
        return cls(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        return itemsize(self.dtype) * math.prod(self.shape)


@functools.cache
def itemsize(dtype: str) -> int:
    """Bytes of an element of a dtype, as `TensorSpec.dtype` names it."""
    size: int = getattr(torch, dtype).itemsize
    return size


def is_expert(name: str) -> bool:
    """Whether a Hugging Face name is that of a routed expert's weight."""
    return ".experts." in name


def held(tensors: Iterable[tuple[str, torch.Tensor | None]]) -> Iterator[NamedTensor]:
    """The tensors that this rank holds; the iterable is run through where it holds none, too."""
    for name, tensor in tensors:
        if tensor is not None:
            yield name, tensor


def plan(specs: Iterable[TensorSpec], limit_bytes: int) -> list[list[TensorSpec]]:
    """All buckets of a list of specs."""
    return list(_group(specs, lambda spec: spec, limit_bytes))


def stream(tensors: Iterable[NamedTensor], limit_bytes: int) -> Iterator[list[NamedTensor]]:
    """The buckets of `plan`, as soon as each is full; holds no more than one bucket of tensors and the one that opens the next."""
    return _group(tensors, lambda named: TensorSpec.of(*named), limit_bytes)


def _group(items: Iterable[T], spec_of: Callable[[T], TensorSpec], limit_bytes: int) -> Iterator[list[T]]:
    bucket: list[tuple[int, T]] = []
    total, experts = 0, False
    for item in items:
        spec = spec_of(item)
        size, expert = spec.num_bytes, is_expert(spec.name)
        if bucket and (total + size > limit_bytes or expert != experts):
            yield _aligned(bucket)
            bucket, total = [], 0
        bucket.append((itemsize(spec.dtype), item))
        total, experts = total + size, expert
    if bucket:
        yield _aligned(bucket)


def _aligned(bucket: list[tuple[int, T]]) -> list[T]:
    return [item for _, item in sorted(bucket, key=lambda pair: -pair[0])]


def flatten(bucket: Sequence[NamedTensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """The bytes of a bucket: a one-dimensional uint8 tensor on the tensors' device, the start of `into` where that is large enough."""
    parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for _, tensor in bucket]
    size = sum(part.numel() for part in parts)
    if into is None or into.numel() < size or into.device != parts[0].device:
        return torch.cat(parts)
    return torch.cat(parts, out=into[:size])
