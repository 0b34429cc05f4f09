"""Looks at what the engines of a live run hold: their version, their checksums beside one another, and beside the trainer's weights.

Asks the engines only; where the trainer's weights come from is the caller's business. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import checksums
from slime_hpc.sync.buckets import NamedTensor
from slime_hpc.sync.checksums import Checksums
from slime_hpc.sync.engine_api import Engines

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the engines of a run hold; all of them the same."""

    engines: tuple[str, ...]
    version: int
    checksums: tuple[tuple[Checksums, ...], ...]
    """By engine and rank."""


def look(endpoints: Sequence[Endpoint], token: str) -> Holdings:
    """Raises WeightPushError, which names the engine, when one holds no whole version, another version, or other bytes than its like,
    and EngineError when one does not answer."""
    engines = Engines(endpoints, token)
    names = tuple(engine.name for engine in engines.each)
    said = engines.all(lambda engine: engine.weight_version(timeout_s=_TIMEOUT_S))
    for name, version in zip(names, said, strict=True):
        if not version.isdigit():
            raise WeightPushError(f"{name} holds no whole version: it says '{version}'.", where=name, fix="wait until the push is over")
        if version != said[0]:
            raise WeightPushError(f"{name} holds version {version}, but {names[0]} version {said[0]}.", where=name, fix="push again")
    sums = engines.all(lambda engine: engine.checksums(timeout_s=_TIMEOUT_S))
    checksums.compare_engines(names, sums)
    return Holdings(names, int(said[0]), tuple(tuple(ranks) for ranks in sums))


def compare_with_trainer(held: Holdings, tensors: Callable[[], Iterator[NamedTensor]], *, num_kv_heads: int) -> int:
    """Number of parameters compared, over all engines and ranks. Raises WeightPushError, which names engine and parameter."""
    count = 0
    wanted: dict[int, list[dict[str, str]]] = {}
    for name, ranks in zip(held.engines, held.checksums, strict=True):
        size = len(ranks)
        if size not in wanted:
            wanted[size] = checksums.expected(tensors(), num_kv_heads=num_kv_heads, tensor_parallel=size)
        count += checksums.compare(name, ranks, wanted[size], whose=f"the trainer's step {held.version}")
    return count
