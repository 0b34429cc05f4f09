"""Who has the GPU's memory when engine and trainer share it: the engine from the push to the end of generation, then the trainer.

Collective on all trainer ranks, of which rank 0 alone speaks with the engines. Knows nothing of what either does with the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.sync import source
from slime_hpc.sync.engine_api import EngineApi, Engines
from slime_hpc.sync.session import attempt

_TIMEOUT_S = 120.0


class Occupancy(Protocol):
    """Hands the memory over."""

    def to_engines(self) -> None:
        """Before a push: the engines take their memory back."""
        ...

    def to_trainer(self) -> None:
        """After generation: the engines give their memory up, and with it their weights."""
        ...


class Apart:
    """Engines and trainer have GPUs of their own: nothing to hand over."""

    def to_engines(self) -> None:
        """Nothing."""

    def to_trainer(self) -> None:
        """Nothing."""


class Shared:
    """Engines that were started with SGLang's memory saver."""

    def __init__(self, engines: Sequence[Endpoint], token: str) -> None:
        self._engines = Engines(engines, token)
        self._released = False

    def to_engines(self) -> None:
        """The engines take their memory back. Raises WeightPushError when one cannot."""
        if self._released:
            self._each(lambda engine: engine.resume_memory(timeout_s=_TIMEOUT_S))
            self._released = False

    def to_trainer(self) -> None:
        """The engines drop their caches and give their memory up. Raises WeightPushError when one cannot."""

        def release(engine: EngineApi) -> None:
            engine.flush_cache(timeout_s=_TIMEOUT_S)
            engine.release_memory(timeout_s=_TIMEOUT_S)

        self._each(release)
        self._released = True

    def _each(self, call: Callable[[EngineApi], None]) -> None:
        source.agree(attempt(lambda: self._call(call)) if source.is_source() else None)

    def _call(self, call: Callable[[EngineApi], None]) -> None:
        self._engines.all(call)
