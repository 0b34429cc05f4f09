"""The notice that a job's time is nearly over (SIGUSR2), and what the supervisor does with the time that is left."""

from __future__ import annotations

import signal
import time
from types import FrameType

from slime_hpc.control import park
from slime_hpc.run_folder import RunFolder


class Parking:
    """Asks the trainer to park the attempt once the notice has come, and waits for it no longer than `patience_s`.

    The notice is only noted when it comes: it interrupts nothing, unlike the signals that end (stop.py).
    """

    def __init__(self, run: RunFolder, attempt: int, *, patience_s: float) -> None:
        self._run = run
        self._attempt = attempt
        self._patience_s = patience_s
        self._noticed = False
        self._deadline: float | None = None

    def listen(self) -> None:
        """Take SIGUSR2 as the notice from now on."""
        signal.signal(signal.SIGUSR2, self._notice)

    def poll(self) -> str | None:
        """Why the attempt is to end now, once the trainer has parked or its time is over; else None."""
        if not self._noticed:
            return None
        if self._deadline is None:
            self._deadline = time.monotonic() + self._patience_s
            park.ask(self._run, self._attempt)
        if (step := park.answered(self._run, self._attempt)) is not None:
            return f"parked at step {step}"
        if time.monotonic() > self._deadline:
            return f"not parked within {self._patience_s:.0f} s; it goes on from the newest checkpoint"
        return None

    def answered(self) -> bool:
        """Whether the trainer has parked: then it ends well before the run does."""
        return self._deadline is not None and park.answered(self._run, self._attempt) is not None

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed = True


def patience_s(grace_s: float, ending_s: float) -> float:
    """How long the trainer may take, of a grace in which ending the steps may take `ending_s`; half of a grace that is too short."""
    return max(grace_s - ending_s, grace_s / 2)
