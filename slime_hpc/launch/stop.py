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


def raise_on_signal() -> None:
    """Replace the handlers that submitit installs: they swallow SIGTERM, and requeue the whole job on SIGUSR2."""
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, _raise)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    # Once: a second signal during clean-up must not break the clean-up.
    for other in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise StopRequested(signal.Signals(number).name)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (prctl(2)); without effect if the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
