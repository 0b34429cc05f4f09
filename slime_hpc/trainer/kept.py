"""Past versions of the policy's weights, kept in host memory: an asynchronous run's answers were drawn by older weights than it trains.

With the log-probs of those weights, computed by the trainer itself, the importance ratio is that of the whole way from then to now. Knows
parameters of this rank alone, and joins no collective.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from slime_hpc.trainer.model import PolicyModel


class Kept:
    """The newest versions of one model."""

    def __init__(self, model: PolicyModel, *, past: int) -> None:
        """`past`: versions before the newest that are kept."""
        self._model = model
        self._past = past
        self._versions: dict[int, list[torch.Tensor]] = {}

    def keep(self, version: int) -> None:
        """Copy the weights as they are now; the oldest version goes when there are too many."""
        self._versions[version] = [parameter.detach().to("cpu", copy=True) for parameter in self._model.parameters()]
        for old in sorted(self._versions)[: -1 - self._past]:
            del self._versions[old]

    def nearest(self, version: int) -> int:
        """The version itself, or the kept one nearest to it: a run that was resumed has the newest alone."""
        return min(self._versions, key=lambda kept: (abs(kept - version), kept))

    @contextlib.contextmanager
    def holding(self, version: int) -> Iterator[None]:
        """The model with the weights of a kept version, for passes without gradients; bit for bit as before afterwards."""
        newest = max(self._versions)
        if version != newest:
            self._set(version)
        try:
            yield
        finally:
            if version != newest:
                self._set(newest)

    @torch.no_grad()
    def _set(self, version: int) -> None:
        for parameter, value in zip(self._model.parameters(), self._versions[version], strict=True):
            parameter.copy_(value)
