"""The trainer's course: start from a checkpoint or a model folder, then take a batch, train, push, save, step after step.

Rank 0 alone speaks with the controller; the others hear of it through the relay.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from slime_hpc.algo import registry
from slime_hpc.control import park
from slime_hpc.control.api import BatchReady, Controller
from slime_hpc.control.client import ControllerClient
from slime_hpc.control.context import RoleContext
from slime_hpc.trainer import checkpoint, roster, share, step, warm_start
from slime_hpc.trainer.delivery import Delivery
from slime_hpc.trainer.model import Blueprint
from slime_hpc.trainer.parallel import Place
from slime_hpc.trainer.policy import Policy
from slime_hpc.trainer.relay import Relay
from slime_hpc.trainer.roster import Roster


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
        self._saves = checkpoint.Saves(context.run, asynchronous=self._experiment.checkpoint.asynchronous)

    def run(self) -> None:
        """Until the last step is trained, pushed and saved; when the attempt is to be parked, until the step reached is saved."""
        experiment = self._experiment
        policy = roster.make_policy(experiment, self._blueprint, self._place)
        start = self._first_weights(policy)
        held = roster.gather(experiment, self._blueprint, self._algorithm, policy, self._place, self._context.run)
        if start:
            checkpoint.load(self._context.run, start, policy, held.optimization, held.critic)
        if held.kept:
            held.kept.keep(start)
        delivery = self._register(start)
        try:
            delivery.push(policy, start)
            for number in range(start + 1, experiment.steps + 1):
                asked = time.monotonic()
                path = self._next_batch(number, delivery, policy)
                if path is None:
                    self._park(number - 1, held)
                    return
                waited_s = time.monotonic() - asked
                delivery.occupancy.to_trainer()
                self._step(number, path, held, seconds_wait=waited_s)
                delivery.push(policy, number)
                self._saves.settle(wait=False)
                if self._due(number):
                    self._save(number, held)
        finally:
            delivery.close()
        self._saves.settle(wait=True)
        self._tell(lambda controller: controller.finish(experiment.steps))

    def _first_weights(self, policy: Policy) -> int:
        """Load what there is; the step it belongs to. Step 0's checkpoint is that of a warm start."""
        run, experiment = self._context.run, self._experiment
        newest = self._relay.ask(lambda: max(checkpoint.complete_steps(run), default=None))
        if newest == 0:
            checkpoint.load(run, 0, policy, None)
        elif newest is None:
            roster.load_folder(policy, experiment, self._blueprint)
            if experiment.warm_start:
                warm_start.run(experiment, experiment.warm_start, policy, self._place, self._report)
                seconds = checkpoint.save(run, 0, policy, None)
                self._report("checkpoint", step=0, seconds=seconds, path=str(run.checkpoint(0)))
        return newest or 0

    def _register(self, start: int) -> Delivery:
        attempt = self._context.attempt
        self._tell(lambda controller: controller.register(attempt=attempt, step=start))
        return Delivery(self._context, self._blueprint, self._ask)

    def _next_batch(self, number: int, delivery: Delivery, policy: Policy) -> Path | None:
        """The file of a step's batch; None when the attempt is to be parked: rank 0 alone looks, so that all ranks agree.

        Meanwhile engines that have come up again are brought the weights that this batch is made with.
        """

        def stopped() -> bool:
            return park.asked(self._context.run, self._context.attempt)

        def ask(controller: Controller) -> dict[str, str]:
            answer = controller.next_batch(number, stopped=stopped)
            return {"path": str(answer.path)} if isinstance(answer, BatchReady) else {"behind": ""} if answer else {}

        while "behind" in (answer := self._ask(ask)):
            delivery.push(policy, number - 1, behind=True)
        return Path(answer["path"]) if answer else None

    def _step(self, number: int, path: Path, held: Roster, *, seconds_wait: float) -> None:
        own = share.read(path, self._experiment, self._algorithm, held.policy, self._place)
        values = step.train(number, own, self._experiment, self._algorithm, held, self._place)
        if held.kept:
            held.kept.keep(number)
        self._report("train", step=number, **values, seconds_wait=seconds_wait)

    def _due(self, number: int) -> bool:
        interval = self._experiment.checkpoint.interval
        return number == self._experiment.steps or (interval > 0 and number % interval == 0)

    def _park(self, number: int, held: Roster) -> None:
        """Save the step reached if it is not saved yet, and say so."""
        run = self._context.run
        self._saves.settle(wait=True)
        newest = self._relay.ask(lambda: max(checkpoint.complete_steps(run), default=0))
        if number > newest:
            self._save(number, held)
            self._saves.settle(wait=True)
        if self._place.rank == 0:
            park.answer(run, self._context.attempt, number)

    def _save(self, number: int, held: Roster) -> None:
        run = self._context.run
        seconds = self._saves.save(number, held.policy, held.optimization, held.critic)
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
