"""A server that a role's task starts: it never outlives the task, and its last words are kept.

The child gets its own process group, is killed by the kernel when the task's main thread ends (`PR_SET_PDEATHSIG`, prctl(2)), and its
whole tree is killed when the task leaves in any other way. Its output goes line by line into the task's own log.
Knows nothing of what the server serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import requests

from slime_hpc.errors import ConfigError, EngineError
from slime_hpc.rollout.pulse import Pulse

CONFIG_ERROR_STATUS = 2
"""Exit status of a child that found its configuration wrong, and said so on its last lines."""
_TAIL_LINES = 200
_SHOWN_LINES = 15
_PR_SET_PDEATHSIG = 1
_PACKAGE = Path(__file__).parents[2]
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def python_environment(*first: Path) -> dict[str, str]:
    """This process's environment for a child Python that finds slime_hpc, and `first` before anything else."""
    path = [*map(str, first), str(_PACKAGE), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"}


class ServerProcess:
    """A running child server; a context manager that leaves nothing behind.

    Start it from the main thread: the kernel's death signal follows the thread that forked.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._log = threading.Thread(target=self._copy_log, name=f"log of {name}", daemon=True)
        self._log.start()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the child, which is its process group's too."""
        return self._process.pid

    def _copy_log(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            print(line, file=sys.stdout, flush=True)

    def wait_healthy(self, url: str, *, timeout_s: float) -> None:
        """Wait until GET `url` answers 200.

        Raises ConfigError or EngineError when the child ends before that, EngineError when it takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(requests.RequestException):
                if requests.get(url, timeout=30).status_code == requests.codes.ok:
                    return
            time.sleep(0.2)
        raise EngineError(
            f"{self.name} was not ready within {timeout_s:.0f} s.\n{self._last_words()}",
            where=self.name,
            fix="see its log; a large model on a slow file system may need more time",
        )

    def check(self) -> None:
        """Raise what the child died of, if it did."""
        status = self._process.poll()
        if status is None:
            return
        self._log.join(timeout=5)
        if status == CONFIG_ERROR_STATUS:
            raise ConfigError(f"{self.name} refused its configuration.\n{self._last_words()}", where=self.name)
        ending = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise EngineError(f"{self.name} {ending}.\n{self._last_words()}", where=self.name)

    def watch(self, pulse: Pulse | None = None) -> None:
        """Stay until the child dies or has no pulse, and raise what happened."""
        with pulse or contextlib.nullcontext():
            while True:
                self.check()
                if pulse:
                    pulse.check()
                time.sleep(0.5)

    def _last_words(self) -> str:
        """Lines around the last error of the log, or its end."""
        lines = [line for line in self._lines if line.strip()]
        errors = [i for i, line in enumerate(lines) if "Error" in line or "error:" in line.lower()]
        end = errors[-1] + 3 if errors else len(lines)
        return "\n".join(lines[max(0, end - _SHOWN_LINES) : end])

    def kill(self) -> None:
        """End the child and everything it started; safe to call twice."""
        tree = [self._process.pid, *_descendants(self._process.pid)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in tree[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.join(timeout=5)


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            yield child.pid
