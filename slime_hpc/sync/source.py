"""Rank 0 of the trainer is the source of weights and alone talks to engines; here it tells the other ranks what came of it.

Text travels as a byte tensor in the trainer's default process group: nothing is unpickled. Without a process group, rank 0 is alone.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from slime_hpc.errors import SlimeError, WeightPushError


def is_source() -> bool:
    """Whether this process is rank 0."""
    return not dist.is_initialized() or dist.get_rank() == 0


def tell(text: str) -> str:
    """Rank 0's text, on all ranks. Collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return text
    device = "cpu" if "gloo" in dist.get_backend() else "cuda"
    data = torch.tensor(list(text.encode()) if is_source() else [], dtype=torch.uint8, device=device)
    length = torch.tensor([data.numel()], dtype=torch.int64, device=device)
    dist.broadcast(length, src=0)
    if not is_source():
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    if data.numel():
        dist.broadcast(data, src=0)
    return bytes(data.tolist()).decode()


def agree(failure: SlimeError | None) -> None:
    """Raise rank 0's failure on all ranks; return when there is none. Collective."""
    words = {"what": failure.what, "where": failure.where, "fix": failure.fix} if failure else {}
    told = json.loads(tell(json.dumps(words)))
    if is_source() and failure is not None:
        raise failure
    if told:
        raise WeightPushError(told["what"], where=told["where"], fix=told["fix"])
