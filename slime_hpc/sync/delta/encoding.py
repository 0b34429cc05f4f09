"""How the difference between two states of a tensor is written down: the interface, and its registry.

An encoding sees bit patterns only: two arrays of unsigned integers of the same size. What they stand for (bf16, fp8, int), which tensor
they belong to, and where the bytes go, it does not know.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from slime_hpc.config import names
from slime_hpc.errors import DeltaError

ZSTD_LEVEL = 1


class Encoding(Protocol):
    """Bit-exact: `apply(old, encode(old, new))` makes `old` equal to `new`. Safe to call from several threads."""

    def encode(self, old_N: np.ndarray, new_N: np.ndarray) -> bytes:
        """The difference of two contiguous arrays of one unsigned type, N < 2**32; empty bytes when they are equal."""
        ...

    def apply(self, target_N: np.ndarray, blob: bytes) -> None:
        """Change `target_N` (contiguous, of the encoded type) in place. Raises DeltaError when `blob` is damaged or does not fit."""
        ...


ENCODINGS = {
    "gaps": "slime_hpc.sync.delta.gaps:Gaps",
    "xor": "slime_hpc.sync.delta.xor:Xor",
}


def load(name: str) -> Encoding:
    """The encoding of that name. Raises DeltaError when there is none."""
    if name not in ENCODINGS:
        raise DeltaError(f"No encoding of weight deltas is called '{name}'.", fix=f"known: {', '.join(ENCODINGS)}")
    encoding: Encoding = names.load(ENCODINGS[name], where="sync.delta.encoding")()
    return encoding
