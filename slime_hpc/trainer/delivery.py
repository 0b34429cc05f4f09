"""Brings the policy's weights to the engines, whichever are up, and checks that they arrived.

A push that fails is tried again with the engines that are up then; engines that came up in between are brought the current version alone.
All ranks call each method together; what the controller says comes through `ask`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from slime_hpc.config import names
from slime_hpc.control.api import Controller
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.sync import source
from slime_hpc.sync.occupancy import Apart, Occupancy, Shared
from slime_hpc.sync.transport import TRANSPORTS, WeightTransport
from slime_hpc.sync.verify import verify
from slime_hpc.trainer import weights
from slime_hpc.trainer.model import Blueprint
from slime_hpc.trainer.policy import Policy

TRIES = 4
PAUSE_S = 3.0
"""Before the next try: time for the controller to learn which engines are gone."""


class Delivery:
    """One attempt's weight pushes."""

    def __init__(self, context: RoleContext, blueprint: Blueprint, ask: Callable[[Callable[[Controller], Any]], Any]) -> None:
        self._context = context
        self._sync = context.experiment.sync
        self._blueprint = blueprint
        self._ask = ask
        self._transport: WeightTransport = names.load(TRANSPORTS[self._sync.transport], where="sync.transport")(context, self._sync)
        self._engines: list[Endpoint] = []
        """What the transport is connected to."""
        self.occupancy: Occupancy = Apart()

    def push(self, policy: Policy, version: int, *, behind: bool = False) -> None:
        """Bring `version` to all engines, or to those that are behind. Raises WeightPushError when the last try has failed."""
        for failed_tries in range(TRIES):
            told = self._ask(lambda controller: [asdict(engine) for engine in controller.begin_weights(version, behind=behind)])
            engines = [Endpoint(**engine) for engine in told]
            if not engines:
                return
            try:
                self._connect(engines)
                self.occupancy.to_engines()
                tensors = weights.export(policy.model, self._blueprint.sizes, holders=source.ranks(self._context))
                report = self._transport.push(version, tensors)
                verified = self._verify(policy, version) if self._sync.verify else {}
            except WeightPushError as error:
                self._engines = []
                if failed_tries + 1 == TRIES:
                    raise
                print(f"push of version {version} failed, try {failed_tries + 1} of {TRIES}: {error}", flush=True)
                time.sleep(PAUSE_S)
                continue
            values = report.figures() | verified | {"engines": len(engines), "failed_tries": failed_tries}
            self._ask(lambda controller: controller.commit_weights(version, engines, values))  # noqa: B023
            return

    def close(self) -> None:
        """Leave the engines."""
        self._transport.close()

    def _connect(self, engines: list[Endpoint]) -> None:
        if engines == self._engines:
            return
        self._transport.connect(engines)
        self._engines = engines
        if self._context.experiment.rollout.colocate and self._context.topology.accelerator == "cuda":
            self.occupancy = Shared(engines, self._context.token)

    def _verify(self, policy: Policy, version: int) -> dict[str, float]:
        start = time.monotonic()
        difference = verify(
            self._engines,
            self._context.token,
            version=version,
            vocab_size=self._blueprint.sizes.vocab_size,
            score=policy.score,
            tolerance=self._sync.verify_tolerance,
        )
        return {"verify_abs_diff": difference, "seconds_verify": time.monotonic() - start}
