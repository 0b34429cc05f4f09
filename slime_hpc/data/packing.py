"""Which samples a data-parallel rank trains on, and in which micro-batches.

Pure, deterministic, computed alike on every rank from lengths alone. What holds for every schedule:
- every sample is in exactly one micro-batch of one rank;
- a micro-batch holds at most `tokens_cap` tokens, unless it is a single longer sample;
- in one update all ranks have the same number of micro-batches (collectives must match), none of them empty;
- siblings of a group are trained in the same update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slime_hpc.errors import PlanError

MicroBatch = tuple[int, ...]
"""Sample indices, ascending."""


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update: for every data-parallel rank its micro-batches."""

    ranks: tuple[tuple[MicroBatch, ...], ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """All sample indices of the update, ascending."""
        return tuple(sorted(index for rank in self.ranks for batch in rank for index in batch))


def attention_cost(lengths: npt.NDArray[np.int64], *, linear_tokens: int = 4096) -> npt.NDArray[np.float64]:
    """Relative FLOPs of each sample: linear in its length, plus attention, which equals the rest at `linear_tokens` tokens."""
    return lengths * (1.0 + lengths / linear_tokens)


def schedule(
    lengths: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], *, dp_size: int, tokens_cap: int, updates: int
) -> tuple[Update, ...]:
    """Split N samples (lengths, groups: (N,)) into `updates` updates, each into micro-batches for `dp_size` ranks.

    Groups go to updates in order of appearance, in equal shares.
    Raises PlanError when an update has too few samples to give every rank the same number of micro-batches.
    """
    order = list(dict.fromkeys(groups.tolist()))
    if len(order) % updates:
        raise PlanError(
            f"{len(order)} prompt groups do not divide into {updates} updates.", where="trainer.updates_per_step", fix="use a divisor"
        )
    share = len(order) // updates
    result = []
    for number in range(updates):
        members = np.flatnonzero(np.isin(groups, order[number * share : (number + 1) * share]))
        result.append(_schedule_update(members, lengths, dp_size=dp_size, tokens_cap=tokens_cap))
    return tuple(result)


def _schedule_update(members: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], *, dp_size: int, tokens_cap: int) -> Update:
    if len(members) < dp_size:
        raise PlanError(
            f"An update of {len(members)} samples cannot feed {dp_size} data-parallel ranks.",
            where="rollout.prompts_per_step x rollout.samples_per_prompt / trainer.updates_per_step",
            fix="raise the batch, or lower trainer.nodes or trainer.updates_per_step",
        )
    bins = _pack(members, lengths, tokens_cap)
    count = -(-len(bins) // dp_size) * dp_size
    if count > len(members):
        raise PlanError(
            f"{len(members)} samples make at least {len(bins)} micro-batches of {tokens_cap} tokens; the next multiple of {dp_size} "
            f"data-parallel ranks is {count}, more than there are samples.",
            where="rollout.prompts_per_step x rollout.samples_per_prompt / trainer.updates_per_step, trainer.tokens_per_gpu",
            fix=f"make the samples of an update a multiple of {dp_size}, or raise trainer.tokens_per_gpu",
        )
    while len(bins) < count:
        bins = _split_largest(bins, lengths)
    return Update(ranks=_deal(bins, lengths, dp_size))


def _pack(members: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], tokens_cap: int) -> list[list[int]]:
    """First-fit decreasing."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(members.tolist(), key=lambda i: (-int(lengths[i]), i)):
        length = int(lengths[index])
        place = next((k for k, free in enumerate(room) if free >= length), None)
        if place is None:
            bins.append([index])
            room.append(tokens_cap - length)
        else:
            bins[place].append(index)
            room[place] -= length
    return bins


def _split_largest(bins: list[list[int]], lengths: npt.NDArray[np.int64]) -> list[list[int]]:
    """Halve the costliest bin that has more than one sample (there is one), alternating its samples from long to short."""
    splittable = [k for k, members in enumerate(bins) if len(members) > 1]
    largest = max(splittable, key=lambda k: (float(attention_cost(lengths[bins[k]]).sum()), -k))
    members = sorted(bins[largest], key=lambda i: (-int(lengths[i]), i))
    return [*bins[:largest], members[0::2], members[1::2], *bins[largest + 1 :]]


def _deal(bins: list[list[int]], lengths: npt.NDArray[np.int64], dp_size: int) -> tuple[tuple[MicroBatch, ...], ...]:
    """Costliest bin first, each to the least loaded rank that still has a free place."""
    places = len(bins) // dp_size
    costs = [float(attention_cost(lengths[members]).sum()) for members in bins]
    ranks: list[list[MicroBatch]] = [[] for _ in range(dp_size)]
    load = [0.0] * dp_size
    for k in sorted(range(len(bins)), key=lambda k: (-costs[k], k)):
        rank = min((r for r in range(dp_size) if len(ranks[r]) < places), key=lambda r: (load[r], r))
        ranks[rank].append(tuple(sorted(bins[k])))
        load[rank] += costs[k]
    return tuple(tuple(rank) for rank in ranks)
