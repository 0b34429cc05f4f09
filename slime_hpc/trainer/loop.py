"""The trainer's course: start from a checkpoint or a model folder, then take a batch, train, push, save, step after step.

Rank 0 alone speaks with the controller; the others hear of it through the relay.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from slime_hpc.algo import registry
from slime_hpc.config import names
from slime_hpc.control import park
from slime_hpc.control.api import Controller
from slime_hpc.control.client import ControllerClient
from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.sync.occupancy import Apart, Occupancy, Shared
from slime_hpc.sync.transport import TRANSPORTS, WeightTransport
from slime_hpc.sync.verify import verify
from slime_hpc.trainer import checkpoint, share, step, warm_start, weights
from slime_hpc.trainer.model import Blueprint, build, transformer_config
from slime_hpc.trainer.optimizer import Optimization
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy
from slime_hpc.trainer.relay import Relay


class TrainingLoop:
    """One attempt's training, on one rank."""

    def __init__(self, context: RoleContext, store: Store, place: Place) -> None:
        self._context = context
        self._experiment = context.experiment
        self._place = place
        self._relay = Relay(store, place.rank)
        self._blueprint = Blueprint.read(self._experiment)
        self._algorithm = registry.load(self._experiment.algorithm)
        self._controller: Controller | None = ControllerClient(context) if place.rank == 0 else None
        self._engines: list[Endpoint] = []
        self._occupancy: Occupancy = Apart()

    def run(self) -> None:
        """Until the last step is trained, pushed and saved; when the attempt is to be parked, until the step reached is saved."""
        experiment = self._experiment
        policy = self._policy()
        start = self._first_weights(policy)
        trainer = experiment.trainer
        optimization = Optimization(policy, trainer.optimizer, steps=experiment.steps, max_skipped=trainer.max_skipped_updates)
        if start:
            checkpoint.load(self._context.run, start, policy, optimization)
        reference = self._reference()
        transport = self._connect(start)
        try:
            self._push(transport, policy, start)
            for number in range(start + 1, experiment.steps + 1):
                asked = time.monotonic()
                path = self._next_batch(number)
                if path is None:
                    self._park(number - 1, policy, optimization)
                    return
                self._step(number, path, policy, optimization, reference, seconds_wait=time.monotonic() - asked)
                self._push(transport, policy, number)
                if self._due(number):
                    self._save(number, policy, optimization)
        finally:
            transport.close()
        self._tell(lambda controller: controller.finish(experiment.steps))

    def _policy(self, *, trainable: bool = True) -> Policy:
        config = transformer_config(self._blueprint, self._experiment)
        return Policy(build(self._blueprint, config, self._place.device), config, self._place, trainable=trainable)

    def _first_weights(self, policy: Policy) -> int:
        """Load what there is; the step it belongs to. Step 0's checkpoint is that of a warm start."""
        run, experiment = self._context.run, self._experiment
        newest = self._relay.ask(lambda: max(checkpoint.complete_steps(run), default=None))
        if newest == 0:
            checkpoint.load(run, 0, policy, None)
        elif newest is None:
            self._load_model(policy)
            if experiment.warm_start:
                warm_start.run(experiment, experiment.warm_start, policy, self._place, self._report)
                seconds = checkpoint.save(run, 0, policy, None)
                self._report("checkpoint", step=0, seconds=seconds, path=str(run.checkpoint(0)))
        return newest or 0

    def _load_model(self, policy: Policy) -> None:
        weights.load(policy.model, self._blueprint.sizes, weights.source_of(self._experiment, self._blueprint))

    def _reference(self) -> Policy | None:
        """The policy before the first RL step, where the loss asks for it."""
        if not self._experiment.algorithm.kl_coef:
            return None
        reference = self._policy(trainable=False)
        if self._experiment.warm_start:
            checkpoint.load(self._context.run, 0, reference, None)
        else:
            self._load_model(reference)
        return reference

    def _connect(self, start: int) -> WeightTransport:
        attempt = self._context.attempt
        told = self._ask(lambda controller: [asdict(engine) for engine in controller.register(attempt=attempt, step=start)])
        self._engines = [Endpoint(**engine) for engine in told]
        sync = self._experiment.sync
        transport: WeightTransport = names.load(TRANSPORTS[sync.transport], where="sync.transport")(self._context, sync)
        transport.connect(self._engines)
        if self._experiment.rollout.colocate and self._context.topology.accelerator == "cuda":
            self._occupancy = Shared(self._engines, self._context.token)
        return transport

    def _next_batch(self, number: int) -> Path | None:
        """The file of a step's batch; None when the attempt is to be parked: rank 0 alone looks, so that all ranks agree."""

        def stopped() -> bool:
            return park.asked(self._context.run, self._context.attempt)

        def ask(controller: Controller) -> str | None:
            batch = controller.next_batch(number, stopped=stopped)
            return str(batch.path) if batch else None

        path = self._ask(ask)
        return Path(path) if path else None

    def _step(
        self, number: int, path: Path, policy: Policy, optimization: Optimization, reference: Policy | None, *, seconds_wait: float
    ) -> None:
        self._occupancy.to_trainer()
        own = share.read(path, self._experiment, self._algorithm.advantage, policy, self._place)
        values = step.train(number, own, self._experiment, self._algorithm, policy, optimization, reference, self._place)
        self._report("train", step=number, **values, seconds_wait=seconds_wait)

    def _push(self, transport: WeightTransport, policy: Policy, version: int) -> None:
        self._ask(lambda controller: controller.begin_weights(version))
        self._occupancy.to_engines()
        report = transport.push(version, weights.export(policy.model, self._blueprint.sizes))
        values: dict[str, Any] = {
            "bytes": report.num_bytes,
            "buckets": report.num_buckets,
            "seconds": report.total_s,
            "seconds_gather": report.gather_s,
            "seconds_wire": report.wire_s,
            **report.phases,
        }
        if self._experiment.sync.verify:
            values |= self._verify(policy, version)
        self._tell(lambda controller: controller.commit_weights(version, values))

    def _verify(self, policy: Policy, version: int) -> dict[str, float]:
        start = time.monotonic()
        difference = verify(
            self._engines,
            self._context.token,
            version=version,
            vocab_size=self._blueprint.sizes.vocab_size,
            score=policy.score,
            tolerance=self._experiment.sync.verify_tolerance,
        )
        return {"verify_abs_diff": difference, "seconds_verify": time.monotonic() - start}

    def _due(self, number: int) -> bool:
        interval = self._experiment.checkpoint.interval
        return number == self._experiment.steps or (interval > 0 and number % interval == 0)

    def _park(self, number: int, policy: Policy, optimization: Optimization) -> None:
        """Save the step reached if it is not saved yet, and say so."""
        run = self._context.run
        newest = self._relay.ask(lambda: max(checkpoint.complete_steps(run), default=0))
        if number > newest:
            self._save(number, policy, optimization)
        if self._place.rank == 0:
            park.answer(run, self._context.attempt, number)

    def _save(self, number: int, policy: Policy, optimization: Optimization) -> None:
        run = self._context.run
        seconds = checkpoint.save(run, number, policy, optimization)
        always = frozenset({0} if self._experiment.algorithm.kl_coef else ())
        checkpoint.prune(run, keep=self._experiment.checkpoint.keep, always=always)
        self._report("checkpoint", step=number, seconds=seconds, path=str(run.checkpoint(number)))

    def _report(self, kind: str, **values: Any) -> None:
        self._tell(lambda controller: controller.report(kind, **values))

    def _ask(self, question: Any) -> Any:
        """All ranks get what the controller answers to rank 0."""
        return self._relay.ask(lambda: question(self._controller))

    def _tell(self, message: Any) -> None:
        """Rank 0 says it; the others do not wait."""
        if self._controller is not None:
            message(self._controller)
