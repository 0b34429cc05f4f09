"""A role's task in a process of its own, as a launcher would start it: for tests of what a task does when it is told to stop, or killed."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from slime_hpc.control.context import RoleContext
from slime_hpc.launch.stop import die_with_parent
from slime_hpc.rollout.process import python_environment

_END_TIMEOUT_S = 60


@contextlib.contextmanager
def start_task(module: str, context: RoleContext, log: Path, *path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`main(context)` of a module, running; told to stop at the end, if it has not ended.

    Its output goes to `log`; its imports come from `path` first.
    """
    file = log.with_suffix(".context")
    file.write_bytes(pickle.dumps(context))
    command = [sys.executable, "-m", "slime_hpc.testing.tasks", module, str(file)]
    with log.open("wb") as output:
        task = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=python_environment(*path), preexec_fn=die_with_parent)
    try:
        yield task
    finally:
        task.terminate()
        try:
            task.wait(_END_TIMEOUT_S)
        finally:
            task.kill()


class _Told(KeyboardInterrupt):
    """The task was told to stop; of a kind that asyncio lets out of its callbacks."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Told


def main(module: str, file: str) -> None:
    """Run a role's main; ends with status 0 when told to stop."""
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(_Told):
        importlib.import_module(module).main(pickle.loads(Path(file).read_bytes()))


if __name__ == "__main__":
    main(*sys.argv[1:])
