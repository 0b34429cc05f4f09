"""How a task is told to end: SIGTERM or SIGUSR2 become an exception in its main thread, so that every `finally` runs."""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

_PR_SET_PDEATHSIG = 1


class StopRequested(KeyboardInterrupt):
    """The task was told to end. Not an Exception: code that survives errors must not survive this.

    A KeyboardInterrupt, for asyncio lets that (and SystemExit) out of its callbacks and tasks, and swallows any other.
    """


_told: list[str] = []
"""The signal that told this process to end."""


def raise_on_signal() -> None:
    """Replace the handlers that submitit installs: they swallow SIGTERM, and requeue the whole job on SIGUSR2."""
    _told.clear()
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, _raise)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    # Once: a second signal during clean-up must not break the clean-up.
    for other in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    _told.append(signal.Signals(number).name)
    raise StopRequested(_told[-1])


def raise_if_told() -> None:
    """Raise what a signal has raised before where Python ignores exceptions: in a finalizer, or a hook around a fork."""
    if _told:
        raise StopRequested(_told[-1])


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (prctl(2)); without effect if the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
