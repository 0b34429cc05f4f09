"""Packed tensors of one micro-batch, and which hidden state predicts which response token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """T packed tokens (padded at the end), of which R are response tokens."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    """Position of each token in its own sequence; 0 for padding."""
    offsets: torch.Tensor
    """(sequences + 1,), int32, without the padding."""
    rows_R: torch.Tensor
    """Index into T of the token before each response token: its hidden state predicts it."""
    targets_R: torch.Tensor
    index_R: torch.Tensor
    """Where each response token stands in the flat response arrays of the batch."""
    sample_R: torch.Tensor
    """Which of the sequences each response token belongs to, ascending."""

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return int(self.offsets[-1])

    @property
    def num_samples(self) -> int:
        """Sequences."""
        return len(self.offsets) - 1


def pack(
    tokens_T: npt.NDArray[np.int32],
    token_offsets: npt.NDArray[np.int64],
    response_offsets: npt.NDArray[np.int64],
    samples: Sequence[int],
    *,
    multiple: int,
    device: torch.device,
) -> MicroBatch:
    """The micro-batch of the samples (rows of a batch with these flat arrays), T padded to a multiple of `multiple`.

    Every sample must have a prompt token: the first response token is predicted from it.
    """
    spans = [(int(token_offsets[i]), int(token_offsets[i + 1])) for i in samples]
    lengths = [end - start for start, end in spans]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([tokens_T[start:end] for start, end in spans])
    positions = np.concatenate([np.arange(length) for length in lengths])
    answers = [(int(response_offsets[i]), int(response_offsets[i + 1])) for i in samples]
    index = np.concatenate([np.arange(start, end) for start, end in answers])
    rows = np.concatenate([np.arange(end - (r1 - r0), end) - 1 for end, (r0, r1) in zip(offsets[1:], answers, strict=True)])
    padding = -len(tokens) % multiple

    def tensor(values: npt.NDArray[np.generic], pad: int = 0) -> torch.Tensor:
        return torch.from_numpy(np.pad(values.astype(np.int64), (0, pad))).to(device)

    return MicroBatch(
        tokens_T=tensor(tokens, padding),
        positions_T=tensor(positions, padding),
        offsets=torch.from_numpy(offsets.astype(np.int32)),
        rows_R=tensor(rows),
        targets_R=tensor(tokens[rows + 1]),
        index_R=tensor(index),
        sample_R=tensor(np.repeat(np.arange(len(answers)), [end - start for start, end in answers])),
    )
