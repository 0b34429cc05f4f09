"""Which elements changed, as the gaps between them, and by how much.

From one training step to the next few elements change, most of them by one or two units in the last place. A gap is the distance from the
changed element before (the first: from the start); a change is new minus old, of the bit patterns as integers modulo 2**bits, in zigzag
order (0, -1, 1, -2, 2 ...) so that small ones of either sign are small numbers. Both are cut into planes, the lowest bytes of all numbers
first, since the higher ones are nearly all zero; each plane is one zstd frame.

    blob  = count: u32, number of gap planes: u8, then the length of each frame: u32 each, gaps before changes; then the frames
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import torch
import zstandard

from slime_hpc.errors import DeltaError
from slime_hpc.sync.delta.encoding import ZSTD_LEVEL

_HEAD = struct.Struct("<IB")
_MOST_GAP_PLANES = 4
_BLOCK_BYTES = 2**21
_WORD = 8


class Gaps:
    """`encoding.Encoding`: gaps and changes in byte planes."""

    def encode(self, old_N: np.ndarray, new_N: np.ndarray) -> bytes:
        """See `Encoding.encode`."""
        position_K, change_K = changes(old_N, new_N)
        if not len(position_K):
            return b""
        gap_K = position_K.astype(np.uint32)
        np.subtract(position_K[1:], position_K[:-1], out=gap_K[1:], casting="unsafe")
        planes = _planes(gap_K, (int(gap_K.max()).bit_length() + 7) // 8)
        num_gap_planes = len(planes)
        planes += _planes(_zigzag(change_K), old_N.itemsize)
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        frames = [compressor.compress(plane.data) for plane in planes]
        lengths = np.array([len(frame) for frame in frames], "<u4").tobytes()
        return b"".join((_HEAD.pack(len(position_K), num_gap_planes), lengths, *frames))

    def apply(self, target_N: np.ndarray, blob: bytes) -> None:
        """See `Encoding.apply`."""
        if not blob:
            return
        try:
            count, num_gap_planes = _HEAD.unpack_from(blob)
            if not count or num_gap_planes > _MOST_GAP_PLANES:
                raise ValueError(f"{count} changes in {num_gap_planes} planes")
            planes = list(_frames(blob, count, num_gap_planes + target_N.itemsize))
        except (zstandard.ZstdError, struct.error, ValueError) as error:
            raise DeltaError(f"The difference of a tensor is damaged: {error}.") from error
        position_K = np.cumsum(_join(planes[:num_gap_planes], count), dtype=np.int64)
        if position_K[-1] >= len(target_N):
            raise DeltaError(f"A difference reaches to element {position_K[-1]} of a tensor of {len(target_N)}.")
        change_K = _unzigzag(_join(planes[num_gap_planes:], count))
        # One pass reads and writes each line; `target_N[position_K] += change_K` would take two.
        signed = f"i{target_N.itemsize}"
        torch.from_numpy(target_N.view(signed)).scatter_add_(0, torch.from_numpy(position_K), torch.from_numpy(change_K.view(signed)))


def changes(old_N: np.ndarray, new_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the elements that differ, ascending (K,) int64, and new minus old there, (K,) of the arrays' type.

    One pass reads both arrays, in blocks of which the differences fit the cache. These are then looked through by lines of 8 words of 8
    bytes: most lines are zero.
    """
    block = _BLOCK_BYTES // old_N.itemsize
    found = [_block_changes(old_N[first : first + block], new_N[first : first + block], first) for first in range(0, len(old_N), block)]
    if len(found) == 1:
        return found[0]
    return (
        np.concatenate([position_K for position_K, _ in found] or [np.empty(0, np.int64)]),
        np.concatenate([change_K for _, change_K in found] or [old_N]),
    )


def _block_changes(old_B: np.ndarray, new_B: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    difference_B = new_B - old_B
    # Shifts and masks: a division of so many numbers would be felt.
    shift = (_WORD // old_B.itemsize).bit_length() - 1
    whole = len(old_B) >> shift + 3 << shift + 3
    difference_W = difference_B[:whole].view(np.uint64)
    word_D = _nonzero_in_lines(difference_W != 0)
    difference_E = difference_W.take(word_D).view(old_B.dtype)
    element_K = np.flatnonzero(difference_E != 0)
    position_K = (word_D << shift).take(element_K >> shift) + (element_K & (1 << shift) - 1)
    position_K += first
    change_K = difference_E.take(element_K)
    if whole < len(old_B):
        rest_K = np.flatnonzero(difference_B[whole:])
        position_K = np.concatenate((position_K, rest_K + (first + whole)))
        change_K = np.concatenate((change_K, difference_B[whole:].take(rest_K)))
    return position_K, change_K


def _nonzero_in_lines(flag_W: np.ndarray) -> np.ndarray:
    """`np.flatnonzero` of flags whose number is a multiple of 8, most of them false: eight at a time, then each where one is set."""
    flags_L = flag_W.view(np.uint64)
    line_D = np.flatnonzero(flags_L != 0)
    inside_D = np.flatnonzero(flags_L.take(line_D).view(np.bool_))
    return line_D.take(inside_D >> 3) * 8 + (inside_D & 7)


def _planes(value_K: np.ndarray, count: int) -> list[np.ndarray]:
    """The lowest `count` bytes of little-endian numbers, byte by byte: (K,) of uint8 each."""
    byte_KB = value_K.astype(value_K.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(value_K), -1)
    return [np.ascontiguousarray(byte_KB[:, i]) for i in range(count)]


def _join(planes: list[bytes], count: int) -> np.ndarray:
    """The inverse of `_planes`: (K,) of the smallest unsigned type that has as many bytes."""
    itemsize = next(size for size in (1, 2, 4, 8) if size >= len(planes))
    byte_KB = np.empty((count, itemsize), np.uint8)
    byte_KB[:, len(planes) :] = 0
    for i, plane in enumerate(planes):
        byte_KB[:, i] = np.frombuffer(plane, np.uint8)
    return byte_KB.reshape(-1).view(f"<u{itemsize}").astype(f"u{itemsize}", copy=False)


def _frames(blob: bytes, count: int, num_frames: int) -> Iterator[bytes]:
    lengths = np.frombuffer(blob, "<u4", num_frames, _HEAD.size)
    decompressor, start = zstandard.ZstdDecompressor(), _HEAD.size + lengths.nbytes
    view = memoryview(blob)
    for length in lengths.tolist():
        plane = decompressor.decompress(view[start : start + length], max_output_size=count)
        if len(plane) != count:
            raise ValueError(f"a plane has {len(plane)} bytes instead of {count}")
        yield plane
        start += length
    if start != len(blob):
        raise ValueError(f"{len(blob)} bytes instead of {start}")


def _zigzag(change_K: np.ndarray) -> np.ndarray:
    signed_K = change_K.view(f"i{change_K.itemsize}")
    return ((signed_K << 1) ^ (signed_K >> (8 * change_K.itemsize - 1))).view(change_K.dtype)


def _unzigzag(value_K: np.ndarray) -> np.ndarray:
    one = value_K.dtype.type(1)
    return (value_K >> one) ^ (~(value_K & one) + one)
