"""Packed tensors of one micro-batch, and which hidden state predicts which response token.

With context parallelism a rank holds its share of every sequence; the response tokens are numbered alike on all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slime_hpc.trainer import context


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """T packed tokens (padded at the end) of this rank's share; R response tokens, of which this rank predicts Q."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    """Position of each token in its own sequence; 0 for padding."""
    place_T: torch.Tensor
    """Index of each token in the whole pack; -1 for padding."""
    offsets: torch.Tensor
    """(sequences + 1,), int32, of the whole pack without the padding."""
    rows_Q: torch.Tensor
    """Index into T of the token before each response token that this rank predicts: its hidden state predicts it."""
    targets_Q: torch.Tensor
    own_Q: torch.Tensor
    """Which of the R they are."""
    index_R: torch.Tensor
    """Where each response token stands in the flat response arrays of the batch."""
    sample_R: torch.Tensor
    """Which of the sequences each response token belongs to, ascending."""
    routes_TLK: torch.Tensor | None = None
    """(num_tokens, layers of the model, experts a token): experts that routers must choose, -1 for a free choice; see `trainer.routes`."""

    @property
    def num_tokens(self) -> int:
        """Real tokens of the whole pack."""
        return int(self.offsets[-1])

    def unrouted(self) -> MicroBatch:
        """The same with a free choice of experts: for any model but the one that the routes are of."""
        return dataclasses.replace(self, routes_TLK=None)

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
    rank: int = 0,
    ranks: int = 1,
) -> MicroBatch:
    """The micro-batch of the samples (rows of a batch with these flat arrays), as rank `rank` of `ranks` context-parallel ones holds it;
    T is padded to a multiple of `multiple`.

    Every sample must have a prompt token: the first response token is predicted from it.
    """
    spans = [(int(token_offsets[i]), int(token_offsets[i + 1])) for i in samples]
    offsets = np.concatenate([[0], np.cumsum([end - start for start, end in spans])])
    tokens = np.concatenate([tokens_T[start:end] for start, end in spans])
    answers = [(int(response_offsets[i]), int(response_offsets[i + 1])) for i in samples]
    index = np.concatenate([np.arange(start, end) for start, end in answers])
    rows = np.concatenate([np.arange(end - (r1 - r0), end) - 1 for end, (r0, r1) in zip(offsets[1:], answers, strict=True)])
    cuts = tuple(offsets.tolist())
    place_T = context.places(cuts, rank, ranks, multiple)
    place = place_T.numpy()
    share = np.full(len(tokens), -1)
    share[place[place >= 0]] = np.flatnonzero(place >= 0)
    own = np.flatnonzero(share[rows] >= 0)

    def tensor(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    return MicroBatch(
        tokens_T=tensor(np.where(place >= 0, tokens[place], 0)),
        positions_T=context.positions(cuts, rank, ranks, len(place)).to(device),
        place_T=place_T.to(device),
        offsets=torch.from_numpy(offsets.astype(np.int32)),
        rows_Q=tensor(share[rows[own]]),
        targets_Q=tensor(tokens[rows[own] + 1]),
        own_Q=tensor(own),
        index_R=tensor(index),
        sample_R=tensor(np.repeat(np.arange(len(answers)), [end - start for start, end in answers])),
    )
