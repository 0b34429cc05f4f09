"""A process that calls a reward, one answer at a time, and can be killed while it does.

The reward is imported before the first answer comes, so a deadline covers the scoring alone. The process leads a process group of its own:
what a reward starts ends with it. It ends when its parent does, however that dies, and even in the middle of a reward.
Knows nothing of batches.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from slime_hpc.config import names
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish
from slime_hpc.errors import RunError

START_TIMEOUT_S = 300.0
"""Time to start Python and import a reward, from a cold shared file system."""

Item = tuple[Prompt, str, Finish]


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one answer."""

    value: float
    error: str = ""
    """Why it could not be scored; `value` is then 0."""

    @property
    def failed(self) -> bool:
        """The reward raised, ran out of time, or returned no finite number."""
        return bool(self.error)


class RewardWorker:
    """The parent's side of one process."""

    def __init__(self, reference: str, options: Mapping[str, Any]) -> None:
        """Start the process; returns at once."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Not a daemon process: those may not have children, and a reward may want some.
        self._process = context.Process(target=_serve, args=(theirs, reference, dict(options)), name="reward")
        self._process.start()
        assert self._process.pid is not None
        self._pid = self._process.pid
        theirs.close()
        self._ready = False
        self.alive = True

    def score(self, item: Item, *, timeout_s: float) -> Score:
        """The score of one answer. After a deadline or a death the process is gone, and `alive` False.

        Raises RunError when the process does not come up.
        """
        self._wait_ready()
        try:
            self._connection.send(item)
            if self._connection.poll(timeout_s):
                score: Score = self._connection.recv()
                return score
            error = f"the reward took longer than {timeout_s:g} s (reward.timeout_s)"
        except (EOFError, OSError):
            error = "the reward ended its process"
        self.kill()
        return Score(0.0, error)

    def _wait_ready(self) -> None:
        if self._ready:
            return
        try:
            self._ready = self._connection.poll(START_TIMEOUT_S) and bool(self._connection.recv())
        except (EOFError, OSError):
            self._ready = False
        if not self._ready:
            self.kill()
            raise RunError(
                f"A process for rewards did not come up (exit code {self._process.exitcode}).",
                where="reward.kind",
                fix="see the controller's log; the module of the reward must be importable in a new process",
            )

    def kill(self) -> None:
        """End the process and what it started; safe to call twice, and while another thread waits for a score."""
        if not self.alive:
            return
        self.alive = False
        self._process.kill()
        if self._ready:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self._process.join()


def _serve(connection: Connection, reference: str, options: dict[str, Any]) -> None:
    """The process: announce that it is ready, then one score an item until the parent is gone."""
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    function = names.load(reference, where="reward.kind")
    connection.send(True)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_score(function, options, connection.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _score(function: Any, options: dict[str, Any], item: Item) -> Score:
    try:
        value = float(function(*item, **options))
    except Exception as error:
        # Whatever user code raises is that sample's failure, never the run's.
        return Score(0.0, f"{type(error).__name__}: {error}")
    return Score(value) if math.isfinite(value) else Score(0.0, f"the reward returned {value}")
