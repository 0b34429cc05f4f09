"""Hypothesis strategies for what slime-hpc works on."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from slime_hpc.data.sample import Finish, Sample


@st.composite
def samples(draw: st.DrawFn, *, max_size: int = 12) -> list[Sample]:
    """Samples of any sizes, with any text, in group order."""
    return [draw(_sample(group=position // 3, index=position % 3)) for position in range(draw(st.integers(0, max_size)))]


@st.composite
def _sample(draw: st.DrawFn, *, group: int, index: int) -> Sample:
    tokens = st.integers(0, 2**31 - 1)
    response = draw(st.lists(tokens, max_size=6))
    version = draw(st.integers(0, 1000))
    return Sample(
        group=group,
        index=index,
        prompt_tokens_P=np.array(draw(st.lists(tokens, min_size=1, max_size=6)), np.int32),
        response_tokens_R=np.array(response, np.int32),
        logprobs_R=np.array([draw(st.floats(-50, 0, width=32)) for _ in response], np.float32),
        loss_mask_R=np.array([draw(st.integers(0, 1)) for _ in response], np.uint8),
        reward=draw(st.floats(-10, 10, width=32)),
        reward_failed=draw(st.booleans()),
        finish=draw(st.sampled_from(list(Finish))),
        weight_version=version,
        weight_version_last=version + draw(st.integers(0, 2)),
        text=draw(st.text(st.characters(), max_size=8)),
    )
