"""What the run waits for and holds: the shared state of the control server and the controller's loop.

Everything happens in one event loop; a waiter wakes on every change.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_hpc.control.endpoint import Endpoint, write_atomic
from slime_hpc.errors import RunError, SlimeError
from slime_hpc.run_folder import RunFolder


@dataclass(slots=True)
class Registration:
    """A trainer that holds the weights of `step`."""

    attempt: int
    step: int
    number: int
    """Counts registrations, so that the loop notices a new one."""


@dataclass(slots=True)
class RunState:
    """Mutable, and mutated in the event loop only."""

    run: RunFolder
    engines: list[Endpoint] | None = None
    """Those that are up; None before all have come up for the first time."""
    holding: frozenset[Endpoint] = frozenset()
    """Those that hold `version`."""
    trainer: Registration | None = None
    serving: bool = True
    """Whether any engine takes requests."""
    version: int | None = None
    """Version that the engines generate with; None before the first push and while one is under way."""
    batches: dict[int, Path] = field(default_factory=dict)
    """Sealed batches that the trainer may fetch."""
    finished: bool = False
    failure: SlimeError | None = None
    """Why the run cannot go on."""
    in_flight: Callable[[], int] = lambda: 0
    phase: str = "starting"
    step: int = 0
    phase_since: float = field(default_factory=time.time)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: BaseException) -> None:
        """Say that the run cannot go on: whoever waits now or later raises it as a RunError."""
        self.failure = error if isinstance(error, SlimeError) else RunError(f"{type(error).__name__}: {error}", where="controller")
        self.change()

    def register(self, attempt: int, step: int) -> None:
        """A trainer starts that holds the weights of `step`: no batch is served until the loop has noticed."""
        self.trainer = Registration(attempt, step, self.trainer.number + 1 if self.trainer else 0)
        self.version = None
        self.batches.clear()
        self.change()

    def behind(self) -> list[Endpoint]:
        """Engines that are up and lack the version that the others generate with."""
        return [engine for engine in self.engines or [] if engine not in self.holding] if self.version is not None else []

    def hold(self, version: int, engines: Iterable[Endpoint]) -> None:
        """`engines` hold `version`, beside those that did already."""
        self.holding = frozenset(engines) | (self.holding if version == self.version else frozenset())
        self.version = version
        self.change()

    def change(self) -> None:
        """Wake every waiter."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, ready: Callable[[], bool], *, timeout_s: float | None = None) -> bool:
        """Wait until `ready`; False when `timeout_s` passed before. Raises RunError once the run cannot go on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.failure is not None:
                raise RunError(self.failure.what, where=self.failure.where, fix=self.failure.fix)
            if ready():
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    def enter(self, phase: str, step: int) -> None:
        """Say what happens now, also to those without network."""
        self.phase, self.step, self.phase_since = phase, step, time.time()
        write_atomic(self.run.status, json.dumps(self.status()))

    def status(self) -> dict[str, Any]:
        """For /v1/status and status.json."""
        return {
            "phase": self.phase, "step": self.step, "weight_version": self.version, "in_flight": self.in_flight(),
            "since": self.phase_since, "trainer_attempt": self.trainer.attempt if self.trainer else None, 
            "error": self.failure.cause if self.failure else "",
        }  # fmt: skip
