"""A batch: all samples of one step as flat arrays with offsets. What an HDF5 file of the run holds.

N samples; T tokens of all prompts and responses together; R response tokens together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of one step, in group order; siblings of a group stand side by side."""

    step: int
    weight_version: int
    """Version of the weights the batch was generated with (synchronous mode: step - 1)."""
    tokens_T: npt.NDArray[np.int32]
    """Prompt and response of sample 0, then of sample 1 ..."""
    token_offsets: npt.NDArray[np.int64]
    """(N + 1,): sample i is tokens_T[token_offsets[i] : token_offsets[i + 1]]."""
    response_offsets: npt.NDArray[np.int64]
    """(N + 1,): offsets into the arrays over R; prompt length = token length - response length."""
    logprobs_R: npt.NDArray[np.float32]
    loss_mask_R: npt.NDArray[np.uint8]
    reward_N: npt.NDArray[np.float32]
    reward_failed_N: npt.NDArray[np.uint8]
    group_N: npt.NDArray[np.int64]
    index_N: npt.NDArray[np.int32]
    finish_N: npt.NDArray[np.uint8]
    weight_version_N: npt.NDArray[np.int32]
    weight_version_last_N: npt.NDArray[np.int32]
    text_bytes: npt.NDArray[np.uint8]
    """UTF-8 of all responses."""
    text_offsets: npt.NDArray[np.int64]
    """(N + 1,): offsets into text_bytes."""
    routes_TLK: npt.NDArray[np.int16] | None = None
    """(T, layers, experts a token): the experts that the engine sent each token to; -1 for a sample's last token, which it never ran."""

    @property
    def num_samples(self) -> int:
        """N."""
        return len(self.reward_N)

    @property
    def token_lengths_N(self) -> npt.NDArray[np.int64]:
        """Prompt + response length of each sample."""
        return np.diff(self.token_offsets)

    @property
    def response_lengths_N(self) -> npt.NDArray[np.int64]:
        """Response length of each sample."""
        return np.diff(self.response_offsets)
