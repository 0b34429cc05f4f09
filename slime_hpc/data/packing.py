"""Which samples a data-parallel rank trains on, and in which micro-batches.

Pure, deterministic, computed alike on every rank from lengths alone. What holds for every schedule:
- every sample is in exactly one micro-batch of one rank;
- a micro-batch holds at most `tokens_cap` tokens, unless it is a single longer sample;
- in one update all ranks have the same number of micro-batches (collectives must match), none of them empty;
- siblings of a group are trained in the same update.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slime_hpc.errors import PlanError

_BALANCE = 5e-4
"""Fraction by which the most loaded rank may exceed the mean; less is not looked for."""
_SWAPS = 1000

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
    bins = pack(lengths[members], tokens_cap)
    count = -(-len(bins) // dp_size) * dp_size
    if count > len(members):
        raise PlanError(
            f"{len(members)} samples make at least {len(bins)} micro-batches of {tokens_cap} tokens; the next multiple of {dp_size} "
            f"data-parallel ranks is {count}, more than there are samples.",
            where="rollout.prompts_per_step x rollout.samples_per_prompt / trainer.updates_per_step, trainer.tokens_per_gpu",
            fix=f"make the samples of an update a multiple of {dp_size}, or raise trainer.tokens_per_gpu",
        )
    costs = attention_cost(lengths[members]).tolist()
    bins, loads = split(bins, costs, count)
    names = members.tolist()
    return Update(ranks=tuple(tuple(tuple(sorted(names[i] for i in bins[k])) for k in rank) for rank in deal(loads, dp_size)))


def pack(lengths: npt.NDArray[np.int64], tokens_cap: int) -> list[list[int]]:
    """Best-fit decreasing: positions in bins of at most `tokens_cap`, or alone. Longest first, each into the fullest bin that holds it."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    """Sorted: the room left in a bin, times `width`, plus the bin's number."""
    width = len(lengths) + 1
    order = np.argsort(-lengths, kind="stable").tolist()
    for index, length in zip(order, lengths[order].tolist(), strict=True):
        place = bisect_left(rooms, length * width)
        if place == len(rooms):
            room, number = max(tokens_cap, length), len(bins)
            bins.append([index])
        else:
            room, number = divmod(rooms.pop(place), width)
            bins[number].append(index)
        # A bin without room for a token would only lengthen the list.
        if room > length:
            insort(rooms, (room - length) * width + number)
    return bins


def split(bins: list[list[int]], costs: list[float], count: int) -> tuple[list[list[int]], list[float]]:
    """`count` bins and their costs: the costliest bin of several samples is halved, its samples dealt long to short, until there are."""
    bins = list(bins)
    loads = [sum(costs[i] for i in members) for members in bins]
    heap = [(-load, k) for k, load in enumerate(loads) if len(bins[k]) > 1]
    heapq.heapify(heap)
    while len(bins) < count:
        _, k = heapq.heappop(heap)
        members = bins[k]
        bins[k] = members[0::2]
        bins.append(members[1::2])
        loads.append(0.0)
        for half in (k, len(bins) - 1):
            loads[half] = sum(costs[i] for i in bins[half])
            if len(bins[half]) > 1:
                heapq.heappush(heap, (-loads[half], half))
    return bins, loads


def deal(loads: list[float], dp_size: int) -> list[list[int]]:
    """Bins of each rank, equally many: costliest first, each to the least loaded rank with a free place; then `_even`."""
    places = len(loads) // dp_size
    ranks: list[list[int]] = [[] for _ in range(dp_size)]
    free = [(0.0, rank) for rank in range(dp_size)]
    for k in sorted(range(len(loads)), key=lambda k: (-loads[k], k)):
        load, rank = heapq.heappop(free)
        ranks[rank].append(k)
        if len(ranks[rank]) < places:
            heapq.heappush(free, (load + loads[k], rank))
    even: list[list[int]] = _even(np.array(ranks), np.array(loads)).tolist()
    return even


def _even(ranks: npt.NDArray[np.int64], loads: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Swap a bin of the most loaded rank for one of the least loaded, or where none helps for any other rank's, while one does.

    ranks (D, places) of bins. A swap brings the sums of both ranks nearer to each other, so that no rank gets more than the most had.
    """
    cost_DP = loads[ranks]
    total_D = cost_DP.sum(axis=1)
    goal = total_D.mean() * (1 + _BALANCE)
    for _ in range(_SWAPS):
        most, least = int(total_D.argmax()), int(total_D.argmin())
        if total_D[most] <= goal:
            break
        found = _swap(cost_DP, total_D, most, np.array([least])) or _swap(cost_DP, total_D, most, np.arange(len(ranks)))
        if found is None:
            break
        own, other, theirs = found
        moved = cost_DP[most, own] - cost_DP[other, theirs]
        total_D[most] -= moved
        total_D[other] += moved
        for array in (cost_DP, ranks):
            array[most, own], array[other, theirs] = array[other, theirs], array[most, own]
    return ranks


def _swap(
    cost_DP: npt.NDArray[np.float64], total_D: npt.NDArray[np.float64], most: int, others: npt.NDArray[np.int64]
) -> tuple[int, int, int] | None:
    """(place on `most`, other rank, place there) of the swap that leaves the lower maximum of the two; None when none lowers it."""
    moved_POP = cost_DP[most][:, None, None] - cost_DP[others][None]
    higher_POP = np.maximum(total_D[most] - moved_POP, total_D[others][None, :, None] + moved_POP)
    own, other, theirs = map(int, np.unravel_index(int(higher_POP.argmin()), higher_POP.shape))
    if higher_POP[own, other, theirs] >= total_D[most] * (1 - 1e-9):
        return None
    return own, int(others[other]), theirs
