"""Tensors in buckets: which ones travel together, and how they lie in the flat bytes of a bucket.

The order is kept, a bucket holds one dtype (so that every tensor in it is aligned), and is larger than the limit only
when a single tensor is. The layout is that of SGLang's FlattenedTensorBucket: the tensors' bytes one after another, without padding.
Pure but for `flatten`, which copies; knows no transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

NamedTensor = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
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
        size: int = getattr(torch, self.dtype).itemsize
        for extent in self.shape:
            size *= extent
        return size


def held(tensors: Iterable[tuple[str, torch.Tensor | None]]) -> Iterator[NamedTensor]:
    """The tensors that this rank holds: all on rank 0, none elsewhere, where the iterable is run through all the same."""
    for name, tensor in tensors:
        if tensor is not None:
            yield name, tensor


def opens_bucket(current: Sequence[TensorSpec], spec: TensorSpec, limit_bytes: int) -> bool:
    """Whether `spec` must start a bucket of its own after `current` (which is not empty)."""
    total = sum(held.num_bytes for held in current) + spec.num_bytes
    return spec.dtype != current[0].dtype or total > limit_bytes


def plan(specs: Iterable[TensorSpec], limit_bytes: int) -> list[list[TensorSpec]]:
    """All buckets of a list of specs."""
    buckets: list[list[TensorSpec]] = []
    for spec in specs:
        if not buckets or opens_bucket(buckets[-1], spec, limit_bytes):
            buckets.append([])
        buckets[-1].append(spec)
    return buckets


def stream(tensors: Iterable[NamedTensor], limit_bytes: int) -> Iterator[list[NamedTensor]]:
    """The buckets of `plan`, as soon as each is full; holds no more than one bucket of tensors and the one that opens the next."""
    bucket: list[NamedTensor] = []
    specs: list[TensorSpec] = []
    for name, tensor in tensors:
        spec = TensorSpec.of(name, tensor)
        if bucket and opens_bucket(specs, spec, limit_bytes):
            yield bucket
            bucket, specs = [], []
        bucket.append((name, tensor))
        specs.append(spec)
    if bucket:
        yield bucket


def flatten(bucket: Sequence[NamedTensor]) -> torch.Tensor:
    """The bytes of a bucket: a new one-dimensional uint8 tensor on the tensors' device."""
    return torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for _, tensor in bucket])
