"""The old bits XOR the new ones, all of them, compressed: where nothing changed there are zeros.

Simple. It is larger than `gaps` for what training changes, and both ways go through every byte.
"""

from __future__ import annotations

import numpy as np
import zstandard

from slime_hpc.errors import DeltaError
from slime_hpc.sync.delta.encoding import ZSTD_LEVEL


class Xor:
    """`encoding.Encoding`: one zstd frame."""

    def encode(self, old_N: np.ndarray, new_N: np.ndarray) -> bytes:
        """See `Encoding.encode`."""
        difference_N = old_N ^ new_N
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(difference_N) if difference_N.any() else b""

    def apply(self, target_N: np.ndarray, blob: bytes) -> None:
        """See `Encoding.apply`."""
        if not blob:
            return
        try:
            difference = zstandard.ZstdDecompressor().decompress(blob, max_output_size=target_N.nbytes)
        except zstandard.ZstdError as error:
            raise DeltaError(f"The difference of a tensor cannot be decompressed: {error}.") from error
        if len(difference) != target_N.nbytes:
            raise DeltaError(f"The difference of a tensor has {len(difference)} bytes; {target_N.nbytes} are needed.")
        np.bitwise_xor(target_N, np.frombuffer(difference, target_N.dtype), out=target_N)
