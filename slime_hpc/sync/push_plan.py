"""A whole push before any byte moves: who assembles which tensors, in which buckets they travel, and as which ranks the engines join.

Pure, and linear in the number of tensors. Every pipeline stage's head (its first rank) broadcasts what its stage holds, in a group of its
own with all engines: no tensor takes a hop through another stage. A stage's experts follow its other weights. `buckets.stream` makes the
same buckets from the tensors themselves, since both follow one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from slime_hpc.errors import ConfigError
from slime_hpc.sync import buckets
from slime_hpc.sync.buckets import TensorSpec, is_expert


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLayout:
    """How the trainer's ranks split the model; ranks of a stage are consecutive, as Megatron orders them. Experts are split by expert
    parallelism alone."""

    world: int
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        replicas = self.world // (self.tensor * self.pipeline) if self.tensor * self.pipeline else 0
        if replicas < 1 or replicas * self.tensor * self.pipeline != self.world or (replicas * self.tensor) % self.expert:
            raise ConfigError(
                f"{self.world} trainer ranks cannot be split into tensor {self.tensor} x pipeline {self.pipeline}, expert {self.expert}.",
                where="trainer",
                fix="make trainer.nodes x gpus_per_node a multiple of the parallel sizes",
            )

    @property
    def heads(self) -> tuple[int, ...]:
        """The first rank of every pipeline stage: it assembles and sends that stage's tensors."""
        return heads(self.world, self.pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """The ranks of one engine: all of them receive whole tensors, and each keeps its shard. Experts are split over these same ranks."""

    tensor: int
    data: int = 1
    """Data-parallel replicas inside the engine."""

    @property
    def num_ranks(self) -> int:
        """Ranks that join each group."""
        return self.tensor * self.data


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter of the trainer: one tensor for the engines, or several where it is fused (qkv, gate and up)."""

    specs: tuple[TensorSpec, ...]
    stage: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that travel together."""

    source: int
    """Trainer rank that assembles and sends it."""
    gathers: int
    """Trainer ranks of which each holds a share of its tensors."""
    specs: tuple[TensorSpec, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the flat data."""
        return sum(spec.num_bytes for spec in self.specs)


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What goes when, from whom, to whom."""

    buckets: tuple[Bucket, ...]
    """In the order in which they are sent: one at a time, so that all engines receive them in one order."""
    engine_ranks: tuple[int, ...]
    """First rank of each engine in every group; 0 is the group's head."""
    group_size: int


def heads(world: int, stages: int) -> tuple[int, ...]:
    """First rank of every pipeline stage."""
    return tuple(range(0, world, world // stages))


def engine_ranks(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """First rank of each engine in a group whose head is rank 0, and the group's size."""
    *firsts, size = accumulate(sizes, initial=1)
    return tuple(firsts), size


def plan_push(parts: Iterable[Part], trainer: TrainerLayout, engines: Sequence[EngineLayout], *, limit_bytes: int) -> PushPlan:
    """The plan of a model whose parameters come in any order; the same for the same arguments. No bucket is larger than `limit_bytes`,
    except one that holds a single tensor."""
    waiting: dict[tuple[int, bool], list[TensorSpec]] = {}
    for part in parts:
        waiting.setdefault((part.stage, is_expert(part.specs[0].name)), []).extend(part.specs)
    firsts, size = engine_ranks([engine.num_ranks for engine in engines])
    planned = []
    for (stage, experts), specs in sorted(waiting.items(), key=lambda item: item[0]):
        gathers = trainer.expert if experts else trainer.tensor
        planned += [Bucket(trainer.heads[stage], gathers, tuple(bucket)) for bucket in buckets.plan(specs, limit_bytes)]
    return PushPlan(tuple(planned), firsts, size)
