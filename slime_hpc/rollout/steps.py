"""The synchronous loop over steps, as the controller sees it; starts again wherever a trainer registers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slime_hpc.control.context import RoleContext
from slime_hpc.data.prompt import PromptSource
from slime_hpc.errors import RunError
from slime_hpc.observe import events
from slime_hpc.rollout.batch_maker import Made
from slime_hpc.rollout.run_state import RunState
from slime_hpc.store import hdf5
from slime_hpc.store.journal import Entry, Journal

T = TypeVar("T")


class Maker(Protocol):
    """Makes batches."""

    async def make(self, step: int, weight_version: int) -> Made:
        """The batch of a step."""
        ...


class Evaluating(Protocol):
    """Evaluates the current weights."""

    def due(self, step: int) -> bool:
        """Whether to, after a step."""
        ...

    async def evaluate(self) -> dict[str, float]:
        """The numbers of an "eval" event."""
        ...


class Restarted(Exception):
    """Another trainer has registered."""


class StepLoop:
    """Serves every step's batch once the weights before it are pushed."""

    def __init__(
        self, context: RoleContext, state: RunState, source: PromptSource, journal: Journal, maker: Maker, evaluator: Evaluating
    ) -> None:
        self._context = context
        self._state = state
        self._source = source
        self._fresh = source.state()
        self._journal = journal
        self._maker = maker
        self._evaluator = evaluator

    async def run(self) -> None:
        """Until the trainer has finished the last step. Raises what made the run fail."""
        while True:
            self._state.enter("waiting for trainer", self._state.step)
            await self._state.wait(lambda: self._state.trainer is not None)
            assert self._state.trainer is not None
            try:
                await self._from(self._state.trainer.step, self._state.trainer.number)
                return
            except Restarted:
                continue

    async def _from(self, start: int, registration: int) -> None:
        steps = self._context.experiment.steps
        await self._committed(start, registration)
        await self._evaluate(start, registration)
        for step in range(start + 1, steps + 1):
            self._state.enter("generating", step)
            self._state.batches[step] = await self._batch(step, registration)
            self._state.change()
            self._state.enter("training", step)
            await self._committed(step, registration)
            await self._evaluate(step, registration)
        self._state.enter("saving", steps)
        await self._state.wait(lambda: self._state.finished or self._restarted(registration))
        self._check(registration)

    async def _batch(self, step: int, registration: int) -> Path:
        """The batch of a step: what an earlier attempt sealed, or a new one."""
        path = self._context.run.batch(step)
        if not await asyncio.to_thread(self._journal.intact, step):
            # The engines take the weights of a trainer that has come meanwhile.
            self._check(registration)
            await self._make(step, path, registration)
        self._check(registration)
        return path

    async def _make(self, step: int, path: Path, registration: int) -> None:
        self._source.restore(self._position(step - 1))
        made = await self._unless_stuck(self._maker.make(step, step - 1), registration)
        report = await asyncio.to_thread(hdf5.seal, path, made.batch)
        self._journal.append(
            Entry(
                step=step, file=path.name, sha256=report.sha256, samples=made.batch.num_samples, tokens=int(made.batch.token_offsets[-1]),
                weight_version=made.batch.weight_version, source_state=self._source.state(),
            )
        )  # fmt: skip
        self._emit("rollout", step, {**made.metrics, "seconds_seal": report.seconds})

    def _position(self, step: int) -> Any:
        state = self._fresh if step == 0 else self._journal.state_after(step)
        if state is None:
            raise RunError(
                f"{self._context.run.batch_index} has no line for step {step}, which the checkpoint goes on from.",
                fix="resume from an earlier checkpoint",
            )
        return state

    async def _committed(self, version: int, registration: int) -> None:
        await self._state.wait(lambda: self._state.version == version or self._restarted(registration))
        self._check(registration)

    async def _evaluate(self, step: int, registration: int) -> None:
        done = events.by_step(self._context.run.metrics, "eval")
        if self._evaluator.due(step) and step not in done:
            self._state.enter("evaluating", step)
            self._emit("eval", step, await self._unless_stuck(self._evaluator.evaluate(), registration))

    async def _unless_stuck(self, generation: Coroutine[Any, Any, T], registration: int) -> T:
        """Its result. Raises Restarted when no engine serves, and a new trainer that could bring them weights waits for it to end."""
        task = asyncio.ensure_future(generation)
        task.add_done_callback(lambda _: self._state.change())
        try:
            await self._state.wait(lambda: task.done() or (self._restarted(registration) and not self._state.serving))
            if not task.done():
                raise Restarted
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _restarted(self, registration: int) -> bool:
        trainer = self._state.trainer
        return trainer is not None and trainer.number != registration

    def _check(self, registration: int) -> None:
        if self._restarted(registration):
            raise Restarted

    def _emit(self, kind: str, step: int, values: dict[str, Any]) -> None:
        event = {"kind": kind, "step": step, "attempt": self._context.attempt, "time": time.time(), **values}
        events.append(self._context.run.metrics, event)
