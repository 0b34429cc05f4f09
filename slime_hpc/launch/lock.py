"""Who runs in a run folder: one file with host, pid, job and a heartbeat, so that two jobs never share a folder."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass

from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import RunFolderError
from slime_hpc.run_folder import RunFolder

HEARTBEAT_S = 5.0
STALE_S = 60.0
"""A holder that has not renewed for this long is gone: longer than attribute caches of shared file systems (NFS: up to 60 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The supervisor that holds a run folder."""

    host: str
    pid: int
    job: str
    """Slurm's job id, or "local"."""
    boot: str
    """Boot id of the host, so that a pid of an earlier boot is not taken for it."""
    time: float


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        return file.read().strip()


def current_holder(run: RunFolder) -> Holder | None:
    """The live holder, or None."""
    try:
        holder = Holder(**json.loads(run.lock.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    if holder.host == socket.gethostname() and holder.boot == _boot_id():
        return holder if _alive(holder.pid) else None
    return holder if time.time() - holder.time < STALE_S else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def require_free(run: RunFolder) -> None:
    """Raise RunFolderError when a live job holds the folder."""
    holder = current_holder(run)
    if holder is not None and holder.pid != os.getpid():
        raise RunFolderError(
            f"{run.path} is held by {'job ' + holder.job if holder.job != 'local' else 'a local run'} (pid {holder.pid} on {holder.host}).",
            where=str(run.lock),
            fix=f"wait for it, or `slime-hpc cancel {run.path}`",
        )


def renew(run: RunFolder, job: str) -> None:
    """Take the folder, or say that it is still held."""
    holder = Holder(host=socket.gethostname(), pid=os.getpid(), job=job, boot=_boot_id(), time=time.time())
    write_atomic(run.lock, json.dumps(asdict(holder)))


def release(run: RunFolder) -> None:
    """Leave the folder."""
    run.lock.unlink(missing_ok=True)
