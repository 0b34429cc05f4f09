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
    """Time the sources waited for whole tensors."""
    wire_s: float
    """Time in collectives, writes and handing over."""
    total_s: float
    convert_s: float = 0.0
    """Time of quantizing and of laying tensors into buckets."""
    load_s: float = 0.0
    """Time from the end of a collective or write until the last engine has loaded it."""
    pause_s: float = 0.0
    """Time in which engines took no request."""
    num_calls: int = 0
    """HTTP requests to engines."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """What a transport alone has to tell: seconds and bytes of its phases, by their names in metrics.jsonl."""

    def figures(self) -> dict[str, float]:
        """As the values of the run's "push" event. Phases that overlap add up to more than `seconds`."""
        return {
            "bytes": self.num_bytes,
            "buckets": self.num_buckets,
            "calls": self.num_calls,
            "seconds": self.total_s,
            "seconds_gather": self.gather_s,
            "seconds_convert": self.convert_s,
            "seconds_wire": self.wire_s,
            "seconds_load": self.load_s,
            "seconds_pause": self.pause_s,
            **self.phases,
        }


class WeightTransport(Protocol):
    """Moves one version at a time. All trainer ranks call each method together; rank 0 speaks for them with the engines."""

    def connect(self, engines: Sequence[Endpoint]) -> None:
        """Join the engines. Raises WeightPushError with the engine's own text."""
        ...

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> PushReport:
        """Send all tensors (Hugging Face names, full shapes), in order, as `version`.

        Each tensor is held by one of `source.ranks`, and None on all other ranks. Iterating is itself a collective, so every rank must
        exhaust the iterable.
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
