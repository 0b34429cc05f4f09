"""From a batch back to its samples: the inverse of `collate`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_hpc.data.batch import Batch
from slime_hpc.data.sample import Finish, Sample


def split(batch: Batch) -> Iterator[Sample]:
    """The samples in the batch's order; their arrays are views of the batch's."""
    text = batch.text_bytes.tobytes()
    lengths_N = batch.response_lengths_N
    for i in range(batch.num_samples):
        first, last = batch.token_offsets[i : i + 2]
        response = slice(*batch.response_offsets[i : i + 2])
        start = last - lengths_N[i]
        yield Sample(
            group=int(batch.group_N[i]),
            index=int(batch.index_N[i]),
            prompt_tokens_P=batch.tokens_T[first:start],
            response_tokens_R=batch.tokens_T[start:last],
            logprobs_R=batch.logprobs_R[response],
            loss_mask_R=batch.loss_mask_R[response],
            reward=float(batch.reward_N[i]),
            reward_failed=bool(batch.reward_failed_N[i]),
            finish=Finish(int(batch.finish_N[i])),
            weight_version=int(batch.weight_version_N[i]),
            weight_version_last=int(batch.weight_version_last_N[i]),
            text=text[batch.text_offsets[i] : batch.text_offsets[i + 1]].decode(errors="replace"),
        )
