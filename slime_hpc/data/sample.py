"""One answer to one prompt, as the rollout leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Finish(IntEnum):
    """Why generation ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """P prompt tokens and R response tokens, with what the engine and the reward said of them."""

    group: int
    """Prompt group id, unique in the run."""
    index: int
    """Position in the group."""
    prompt_tokens_P: npt.NDArray[np.int32]
    response_tokens_R: npt.NDArray[np.int32]
    logprobs_R: npt.NDArray[np.float32]
    """The engine's log-probability of each response token, at the sampling temperature."""
    loss_mask_R: npt.NDArray[np.uint8]
    """1 where a response token is trained on."""
    reward: float
    reward_failed: bool
    """The reward raised or ran out of time; `reward` is then 0."""
    finish: Finish
    weight_version: int
    """Version of the weights that the first response token was drawn from."""
    weight_version_last: int
    """Version that the last response token was drawn from."""
    text: str
    """The response, decoded."""
    routes_TLK: npt.NDArray[np.int16] | None = None
    """(P + R - 1, layers, experts a token): the experts that the engine sent each token to; it never ran the last one."""
