"""Numbers of one step, gathered token by token on the ranks that have log-probs, and joined over all ranks once."""

from __future__ import annotations

import torch
import torch.distributed as dist

from slime_hpc.trainer.parallel import Place


class Meter:
    """Sums and maxima by name. Every rank must add the same names, or none at all."""

    def __init__(self, place: Place, *, sums: tuple[str, ...], maxima: tuple[str, ...]) -> None:
        self._place = place
        self._sums = dict.fromkeys(sums, 0.0)
        self._maxima = dict.fromkeys(maxima, 0.0)

    def add(self, name: str, value: torch.Tensor | float) -> None:
        """Add to a sum; counts once for all tensor- and context-parallel ranks."""
        if self._place.tells:
            self._sums[name] += float(value.detach() if isinstance(value, torch.Tensor) else value)

    def raise_to(self, name: str, values: torch.Tensor) -> None:
        """Raise a maximum."""
        if self._place.tells and values.numel():
            self._maxima[name] = max(self._maxima[name], float(values.max()))

    def join(self) -> dict[str, float]:
        """All sums and maxima over all ranks. Collective."""
        sums = torch.tensor(list(self._sums.values()), dtype=torch.float64, device=self._place.device)
        maxima = torch.tensor(list(self._maxima.values()), dtype=torch.float64, device=self._place.device)
        if self._place.world > 1:
            dist.all_reduce(sums)
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        return dict(zip(self._sums, sums.tolist(), strict=True)) | dict(zip(self._maxima, maxima.tolist(), strict=True))
