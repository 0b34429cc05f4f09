"""How one version of the weights goes from trainer ranks to engines: the interface and its registry.

Knows Hugging Face names and tensors; knows neither Megatron nor how an engine is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slime_hpc.control.endpoint import Endpoint

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What one push took."""

    version: int
    num_bytes: int
    num_buckets: int
    gather_s: float
    """Time the source waited for tensors (gather, convert)."""
    wire_s: float
    """Time in collectives, writes and engine replies."""
    total_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    """What a transport alone has to tell: seconds and bytes of its phases, by their names in metrics.jsonl."""


class WeightTransport(Protocol):
    """Moves one version at a time. All trainer ranks call each method together; rank 0 is the source."""

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Join the engines. Raises WeightPushError with the engine's own text."""
        ...

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Send all tensors (Hugging Face names, full shapes; None on ranks other than 0), in order, as `version`.

        Iterating is itself a collective, so every rank must exhaust the iterable.
        Raises WeightPushError on every rank when any engine failed; that engine then holds no whole version.
        """
        ...

    def close(self) -> None:
        """Leave; safe to call twice, and after an error."""
        ...


TRANSPORTS = {
    "distributed": "slime_hpc.sync.distributed:DistributedTransport",
    "disk": "slime_hpc.sync.disk:DiskTransport",
    "ipc": "slime_hpc.sync.ipc:IpcTransport",
    "delta": "slime_hpc.sync.delta.transport:DeltaTransport",
}
