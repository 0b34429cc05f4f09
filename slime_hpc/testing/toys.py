"""Roles that do nothing but end, or fail, as a script says: they show what supervisor and launchers do, without an engine or a trainer.

`python -m slime_hpc.testing.toys RUN_FOLDER` is the supervisor with these roles. `toys.json` in the run folder maps "role" or "role-rank"
to what that task does ("once": fail the first time; "outlast": work until such a one is there again); a task it doesn't name works
(controller, trainer) or serves until it is told to end (router, engines).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from slime_hpc.control import park
from slime_hpc.control.context import RoleContext
from slime_hpc.errors import RunError
from slime_hpc.run_folder import RunFolder

Deed = Literal["work", "serve", "raise", "exit", "killed", "stubborn", "park", "once", "outlast"]
WORK_S = 1.0
PARKED_AT = 7
"""The step that a toy says it has saved."""


def toy_roles() -> dict[str, str]:
    """In place of slime_hpc.launch.roles.ROLES."""
    return dict.fromkeys(("controller", "router", "engines", "trainer"), "slime_hpc.testing.toys:play")


def write_deeds(run: RunFolder, deeds: Mapping[str, Deed]) -> None:
    """Say what tasks do; the others do what their kind does."""
    (run.path / "toys.json").write_text(json.dumps(deeds), encoding="utf-8")


def play(context: RoleContext) -> None:
    """Note where this task runs, do its deed, and note that it had the time to clean up."""
    name = f"{context.role.name}-{context.rank}"
    deeds = json.loads((context.run.path / "toys.json").read_text(encoding="utf-8"))
    default = "serve" if context.role.kind in ("router", "engines") else "work"
    note = {
        "node": os.uname().nodename, "address": context.address, "local_rank": context.local_rank, "attempt": context.attempt,
        "pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }  # fmt: skip
    deed = deeds.get(name, deeds.get(context.role.name, default))
    if deed == "once":
        again = (context.run.attempt(context.attempt) / f"{name}.started").exists()
        deed = default if again else "exit"
        if again:
            _write(context, f"{name}.again", {})
    _write(context, f"{name}.started", note)
    with (context.run.attempt(context.attempt) / f"{name}.starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    try:
        _do(deed, context)
    finally:
        _write(context, f"{name}.cleaned", {})


def _do(deed: Deed, context: RoleContext) -> None:
    time.sleep(WORK_S)
    if deed == "park":
        _park(context)
        return
    if deed == "raise":
        raise RunError("the toy broke", where="toys", fix="mend it")
    if deed == "exit":
        os._exit(3)
    if deed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "stubborn":
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    while deed != "work" and not (deed == "outlast" and list(context.run.attempt(context.attempt).glob("*.again"))):
        time.sleep(0.1)


def _park(context: RoleContext) -> None:
    """In the first attempt, wait to be asked; the next one has nothing to wait for."""
    if context.attempt == 0:
        while not park.asked(context.run, context.attempt):
            time.sleep(0.1)
        park.answer(context.run, context.attempt, PARKED_AT)


def _write(context: RoleContext, name: str, note: Mapping[str, Any]) -> None:
    folder = context.run.attempt(context.attempt)
    temporary = folder / f"{name}.part"
    temporary.write_text(json.dumps(note), encoding="utf-8")
    temporary.replace(folder / name)


def started(run: RunFolder, attempt: int = 0) -> dict[str, dict[str, Any]]:
    """What every task noted at its start, by "role-rank"."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in run.attempt(attempt).glob("*.started")}


def starts(run: RunFolder, attempt: int = 0) -> dict[str, int]:
    """How often every task was started, by "role-rank"."""
    return {path.stem: len(path.read_text().splitlines()) for path in run.attempt(attempt).glob("*.starts")}


def cleaned(run: RunFolder, attempt: int = 0) -> set[str]:
    """Tasks that ended in order."""
    return {path.stem for path in run.attempt(attempt).glob("*.cleaned")}


def main(folder: str) -> int:
    """Supervise a run of toys."""
    from slime_hpc.launch.supervisor import main as supervise

    return supervise(folder, roles=toy_roles())


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]))))
