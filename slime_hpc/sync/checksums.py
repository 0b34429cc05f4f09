"""Checksums of what engines hold: of the trainer's weights as an engine would hold them, and of engines beside one another.

SGLang's /weights_checker names each parameter of each rank with the first 8 bytes of its SHA-256 (on CPUs; on GPUs it hashes otherwise,
so there only engines can be compared). An engine's rank holds q, k, v and gate, up fused, its share of rows or columns, and a vocabulary
that is filled up with zeros to a multiple of 64. Pure; covers the dense models of `plan.model_config`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F

from slime_hpc.errors import WeightPushError
from slime_hpc.sync.buckets import NamedTensor

Checksums = Mapping[str, str]
"""Of one engine rank: SGLang's parameter name -> hexadecimal digits."""
_VOCAB_MULTIPLE = 64
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
_PARTS = {"qkv_proj": 3, "gate_up_proj": 2}


def of_tensor(tensor: torch.Tensor) -> str:
    """SGLang's checksum of a tensor on a CPU."""
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data.data).digest()[:8].hex()


def expected(tensors: Iterable[NamedTensor], *, num_kv_heads: int, tensor_parallel: int) -> list[dict[str, str]]:
    """Checksums of each rank of an engine that holds these Hugging Face tensors; the parts of a fused parameter come together."""
    ranks: list[dict[str, str]] = [{} for _ in range(tensor_parallel)]
    for name, parts in _fused(tensors):
        for rank, sums in enumerate(ranks):
            sums[name] = of_tensor(torch.cat([_share(part, tensor, num_kv_heads, rank, tensor_parallel) for part, tensor in parts]))
    return ranks


def _fused(tensors: Iterable[NamedTensor]) -> Iterator[tuple[str, list[NamedTensor]]]:
    """SGLang's parameters with the Hugging Face tensors that each holds."""
    waiting: dict[str, list[NamedTensor]] = {}
    for name, tensor in tensors:
        module = name.split(".")[-2]
        fused = _FUSED.get(module, module)
        whole = name.replace(f".{module}.", f".{fused}.")
        parts = waiting.setdefault(whole, [])
        parts.append((name, tensor))
        if len(parts) == _PARTS.get(fused, 1):
            yield whole, waiting.pop(whole)


def _share(name: str, tensor: torch.Tensor, num_kv_heads: int, rank: int, size: int) -> torch.Tensor:
    """What one rank keeps of a Hugging Face tensor."""
    module = name.split(".")[-2]
    if module in ("embed_tokens", "lm_head"):
        tensor = F.pad(tensor, (0, 0, 0, -tensor.shape[0] % _VOCAB_MULTIPLE))
    if module in ("k_proj", "v_proj") and size > num_kv_heads:
        # Several ranks hold the same head.
        return tensor.chunk(num_kv_heads, 0)[rank * num_kv_heads // size]
    if module in ("o_proj", "down_proj"):
        return tensor.chunk(size, 1)[rank]
    return tensor if module.endswith("norm") or tensor.dim() == 0 else tensor.chunk(size, 0)[rank]


def compare(engine: str, found: Sequence[Checksums], wanted: Sequence[Checksums], *, whose: str) -> int:
    """Number of parameters that were compared. Raises WeightPushError, which names the engine and a parameter, for the first difference.

    `whose` says in the error's words what `wanted` is of.
    """
    if len(found) != len(wanted):
        raise _differs(engine, f"it has {len(found)} ranks, not {len(wanted)}", whose)
    for rank, (own, other) in enumerate(zip(found, wanted, strict=True)):
        for name in sorted(own.keys() | other.keys()):
            if own.get(name) != other.get(name):
                raise _differs(engine, f"{name} of its rank {rank} has checksum {own.get(name)}, not {other.get(name)}", whose)
    return sum(len(own) for own in found)


def compare_engines(names: Sequence[str], found: Sequence[Sequence[Checksums]]) -> None:
    """Raises WeightPushError for an engine that differs from the others of its size: from what most of them hold."""
    for size in sorted({len(ranks) for ranks in found}):
        alike = {name: [dict(rank) for rank in ranks] for name, ranks in zip(names, found, strict=True) if len(ranks) == size}
        votes = {name: sum(ranks == other for other in alike.values()) for name, ranks in alike.items()}
        model = max(alike, key=votes.__getitem__)
        for name, ranks in alike.items():
            compare(name, ranks, alike[model], whose=model)


def _differs(engine: str, how: str, whose: str) -> WeightPushError:
    return WeightPushError(
        f"{engine} does not hold the weights of {whose}: {how}.", where=engine, fix="push again, or restart the engine; see its log"
    )
