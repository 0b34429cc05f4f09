"""The bytes of a tensor in chunks of one size: their checksum, and work on them by several threads, in order.

A chunk is what is encoded, applied and hashed at a time: large enough that what Python does for each does not count, small enough that
threads share a tensor. The checksum of a tensor is the XXH3-128 of its chunks' XXH3-128 digests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
import xxhash

CHUNK_BYTES = 2**23
_AHEAD = 2
T = TypeVar("T")
R = TypeVar("R")


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a tensor in host memory, (num_bytes,) of uint8; shares the memory of a contiguous CPU tensor."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    array: np.ndarray = flat.view(torch.uint8).numpy()
    return array


def slices(num_bytes: int) -> list[slice]:
    """The chunks of a tensor."""
    return [slice(first, min(first + CHUNK_BYTES, num_bytes)) for first in range(0, num_bytes, CHUNK_BYTES)]


def digest(chunk: np.ndarray) -> bytes:
    """Of one chunk (contiguous)."""
    return xxhash.xxh3_128_digest(chunk.data)


def checksum(digests: Iterable[bytes]) -> str:
    """Of a tensor, from the digests of its chunks in order: 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(b"".join(digests))


class Crew:
    """Some threads."""

    def __init__(self, threads: int) -> None:
        self._ahead = _AHEAD * threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chunks")

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`work` of every item, in order; only so many results wait at a time that no thread is idle."""
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                if len(waiting) >= self._ahead:
                    yield waiting.popleft().result()
                waiting.append(self._pool.submit(work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            # Nothing that was begun works on when the caller has left on an error.
            for future in waiting:
                if not future.cancel():
                    future.exception()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
