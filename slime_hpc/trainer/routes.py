"""Which experts each token goes to: recorded in one pass, or forced upon another (R3, Ma et al. 2025, arXiv 2510.11370).

A micro-batch may carry `routes_TLK`; while it runs, every router asks here. Knows no model: layers are numbered from 0 over all stages, and
a pack is known by the storage of its offsets, which Megatron hands through pipeline and recomputation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slime_hpc.trainer.microbatch import MicroBatch

FREE = -1
"""In the place of an expert: the router's own choice stands."""


@dataclass(slots=True)
class _State:
    """What is under way in this process."""

    forced: dict[int, torch.Tensor] = field(default_factory=dict)
    """(tokens of this context-parallel rank, layers, top_k) of each pack that is replayed."""
    recorded: dict[int, dict[int, torch.Tensor]] | None = None
    here: int = 0


_STATE = _State()


def enter(offsets: torch.Tensor) -> None:
    """A layer begins to work on the pack with these offsets."""
    _STATE.here = offsets.data_ptr()


def choose(layer: int, own_TK: torch.Tensor, group: Any) -> torch.Tensor:
    """The experts of this rank's tokens, (T, top_k): `own_TK` where nothing is forced. `group`: ranks that split the tokens evenly."""
    chosen_TK = own_TK
    forced_TLK = _STATE.forced.get(_STATE.here)
    if forced_TLK is not None:
        forced_TK = forced_TLK[:, layer]
        if group is not None and group.size() > 1:
            forced_TK = forced_TK.chunk(group.size())[group.rank()]
        forced_TK = forced_TK.to(own_TK.device)
        # A token is forced as a whole: its own choice may repeat an expert that is forced.
        chosen_TK = torch.where((forced_TK != FREE).all(1, keepdim=True), forced_TK, own_TK)
    if _STATE.recorded is not None:
        _STATE.recorded.setdefault(_STATE.here, {})[layer] = chosen_TK.detach()
    return chosen_TK


@contextlib.contextmanager
def replaying(batches: Sequence[MicroBatch]) -> Iterator[None]:
    """Force the routes of those micro-batches that carry some."""
    _STATE.forced = {batch.offsets.data_ptr(): _local(batch, batch.routes_TLK) for batch in batches if batch.routes_TLK is not None}
    try:
        yield
    finally:
        _STATE.forced = {}


@contextlib.contextmanager
def recording() -> Iterator[Recorded]:
    """Record what routers choose meanwhile."""
    _STATE.recorded = {}
    try:
        yield Recorded(_STATE.recorded)
    finally:
        _STATE.recorded = None


class Recorded:
    """Choices of this rank's layers for the tokens that it routes."""

    def __init__(self, packs: dict[int, dict[int, torch.Tensor]]) -> None:
        self._packs = packs

    def routes(self, batch: MicroBatch, num_layers: int) -> torch.Tensor:
        """routes_TLK (num_tokens, num_layers, top_k) of a micro-batch: FREE in layers that this rank does not have or that have no experts.

        For ranks that hold all tokens: no context and no sequence parallelism.
        """
        layers = self._packs[batch.offsets.data_ptr()]
        example_TK = next(iter(layers.values()))
        routes_TLK = torch.full((batch.num_tokens, num_layers, example_TK.size(1)), FREE)
        real = (batch.place_T >= 0).cpu()
        for layer, chosen_TK in layers.items():
            routes_TLK[:, layer] = chosen_TK.cpu()[real]
        return routes_TLK


def _local(batch: MicroBatch, routes_TLK: torch.Tensor) -> torch.Tensor:
    """Of the tokens that this context-parallel rank holds, padding free."""
    padded = torch.cat([routes_TLK, routes_TLK.new_full((1, *routes_TLK.shape[1:]), FREE)])
    return padded[batch.place_T.cpu()]
