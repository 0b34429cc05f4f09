"""The control API of a run: what the trainer asks of the controller, and the client that asks it.

    POST /v1/trainer            {"attempt", "step"}       the trainer holds the weights of `step`; answers the engines
    POST /v1/weights/begin      {"version", "behind"}     answers the engines to write to, once no request is in flight there
    POST /v1/weights/commit     {"version", "engines", "metrics"}    `engines` hold `version`; metrics: the "push" event
    GET  /v1/batches/{step}     ?wait_s=                  200 {"path"} or {"behind"}, 204 not yet, 409 {"error"}
    POST /v1/events             {"kind", ...}             one line of metrics.jsonl
    POST /v1/finish             {"step"}                  the trainer has done its last step
    GET  /v1/status             what the run does now

Every request bears the run's token. 412 says that this controller is new and knows no trainer yet. The server is
`rollout.control_server`; this module knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slime_hpc.control.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class BatchReady:
    """A sealed batch waits to be trained on."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class EnginesBehind:
    """Engines that have come up again lack the weights that the trainer holds: push to them, then ask again."""


def never() -> bool:
    """For a wait that nothing stops."""
    return False


class Controller(Protocol):
    """The controller, as the trainer sees it. Every call raises RunError when the controller cannot go on."""

    def register(self, *, attempt: int, step: int) -> list[Endpoint]:
        """Say that the trainer holds the weights of `step`; wait for and return the engines."""
        ...

    def begin_weights(self, version: int, *, behind: bool = False) -> list[Endpoint]:
        """The engines to write to, once they are idle; `behind`: those alone that lack `version`, while the others generate on."""
        ...

    def commit_weights(self, version: int, engines: Sequence[Endpoint], metrics: dict[str, float]) -> None:
        """`engines` hold `version`: generation may go on with it; `metrics` become the run's "push" event."""
        ...

    def next_batch(self, step: int, *, stopped: Callable[[], bool] = never) -> BatchReady | EnginesBehind | None:
        """Wait for the batch of `step`, or for engines that need weights to make it; None once `stopped`."""
        ...

    def report(self, kind: str, **values: Any) -> None:
        """Append one event to the run's metrics."""
        ...

    def finish(self, step: int) -> None:
        """The last step is trained, pushed and saved."""
        ...
