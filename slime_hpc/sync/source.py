"""Which trainer ranks send weights, and how all ranks hear what came of it. Rank 0 alone pauses and resumes engines.

Text travels as a byte tensor in the trainer's default process group: nothing is unpickled. Without a process group, rank 0 is alone.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from slime_hpc.control.context import RoleContext
from slime_hpc.errors import SlimeError, WeightPushError
from slime_hpc.sync.push_plan import heads

_SENT_BY_STAGES = ("distributed",)
"""Transports that take each pipeline stage's tensors from that stage's head; the others take all from rank 0."""


def is_source() -> bool:
    """Whether this process is rank 0."""
    return rank() == 0


def ranks(context: RoleContext) -> tuple[int, ...]:
    """The trainer ranks that hold what the experiment's transport sends, in the order in which they send."""
    experiment = context.experiment
    if experiment.sync.transport not in _SENT_BY_STAGES:
        return (0,)
    return heads(context.role.num_tasks, experiment.trainer.pipeline_parallel)


def tell(text: str) -> str:
    """Rank 0's text, on all ranks. Collective."""
    if _world() == 1:
        return text
    device = _device()
    data = torch.tensor(list(text.encode()) if is_source() else [], dtype=torch.uint8, device=device)
    length = torch.tensor([data.numel()], dtype=torch.int64, device=device)
    dist.broadcast(length, src=0)
    if not is_source():
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    if data.numel():
        dist.broadcast(data, src=0)
    return bytes(data.tolist()).decode()


def exchange(value: Any) -> list[Any]:
    """The JSON values of all ranks, in their order, on all ranks. Collective."""
    text = json.dumps(value).encode()
    world = _world()
    if world == 1:
        return [json.loads(text)]
    device = _device()
    lengths = [torch.empty(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([len(text)], dtype=torch.int64, device=device))
    sizes = [int(length) for length in lengths]
    own = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    own[: len(text)] = torch.tensor(list(text), dtype=torch.uint8, device=device)
    texts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(texts, own)
    return [json.loads(bytes(each[:size].tolist())) for each, size in zip(texts, sizes, strict=True)]


def agree(failure: SlimeError | None, figures: Any = None) -> list[Any]:
    """Raise on all ranks what has failed on any, a rank's own failure or else the lowest rank's; the `figures` of all ranks when nothing
    has. Collective."""
    words = {"what": failure.what, "where": failure.where, "fix": failure.fix} if failure else None
    told = exchange({"failure": words, "figures": figures})
    if failure is not None:
        raise failure
    for each in told:
        if words := each["failure"]:
            raise WeightPushError(words["what"], where=words["where"], fix=words["fix"])
    return [each["figures"] for each in told]


def pass_turn(to: int, *, well: bool) -> None:
    """Tell another rank that its turn has come, and whether all went well so far."""
    dist.send(torch.tensor([well], dtype=torch.uint8), dst=to)


def await_turn(of: int) -> bool:
    """Wait until another rank passes the turn; whether all went well until then."""
    well = torch.zeros(1, dtype=torch.uint8)
    dist.recv(well, src=of)
    return bool(well)


def rank() -> int:
    """This process's rank among the trainer's."""
    return dist.get_rank() if dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _device() -> str:
    return "cpu" if "gloo" in dist.get_backend() else "cuda"
