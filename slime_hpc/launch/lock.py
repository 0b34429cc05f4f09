"""Who runs in a run folder: one file with host, pid, job and a heartbeat, so that two jobs never share a folder."""

from __future__ import annotations

import contextlib
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
    return holder if _live(holder) else None


def _live(holder: Holder) -> bool:
    if holder.host == socket.gethostname() and holder.boot == _boot_id():
        return _alive(holder.pid)
    return time.time() - holder.time < STALE_S


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def require_free(run: RunFolder, *, job: str = "") -> None:
    """Raise RunFolderError when a live job holds the folder; an earlier start of `job`, which Slurm has started now, is none."""
    holder = current_holder(run)
    if holder is not None and not _is_me(holder) and not _earlier_start(holder, job):
        raise RunFolderError(
            f"{run.path} is held by {'job ' + holder.job if holder.job != 'local' else 'a local run'} (pid {holder.pid} on {holder.host}).",
            where=str(run.lock),
            fix=f"wait for it, or `slime-hpc cancel {run.path}`",
        )


def take(run: RunFolder, job: str) -> None:
    """Hold the folder. Raises RunFolderError when a live job does; of two that try at once, one gets past the first `renew`."""
    require_free(run, job=job)
    _bury_dead(run, job)
    mine = run.lock.with_name(f".lock.{socket.gethostname()}.{os.getpid()}")
    write_atomic(mine, _me(job))
    try:
        # link(2) is atomic on every shared file system, and fails when the name is there.
        os.link(mine, run.lock)
    except FileExistsError:
        require_free(run)
        raise RunFolderError(f"{run.path} was taken just now by another job.", where=str(run.lock), fix="wait for it") from None
    finally:
        mine.unlink()


def renew(run: RunFolder, job: str) -> None:
    """Say that it is still held. Raises RunFolderError when another job has taken it, as it may from one that was long suspended."""
    require_free(run)
    write_atomic(run.lock, _me(job))


def release(run: RunFolder) -> None:
    """Leave the folder, if it is still ours."""
    holder = current_holder(run)
    if holder is not None and _is_me(holder):
        run.lock.unlink(missing_ok=True)


def _earlier_start(holder: Holder, job: str) -> bool:
    """Slurm requeues a job only when it has ended, perhaps so that it could not let go of the folder."""
    return job not in ("", "local") and holder.job == job


def _is_me(holder: Holder) -> bool:
    return (holder.host, holder.pid) == (socket.gethostname(), os.getpid())


def _me(job: str) -> str:
    return json.dumps(asdict(Holder(host=socket.gethostname(), pid=os.getpid(), job=job, boot=_boot_id(), time=time.time())))


def _bury_dead(run: RunFolder, job: str) -> None:
    """Remove the file of a holder that is gone. Moved aside first, and put back if another job has taken the folder meanwhile."""
    aside = run.lock.with_name(f".dead.{socket.gethostname()}.{os.getpid()}")
    try:
        run.lock.rename(aside)
    except FileNotFoundError:
        return
    holder = Holder(**json.loads(aside.read_text(encoding="utf-8")))
    if _live(holder) and not _earlier_start(holder, job):
        with contextlib.suppress(FileExistsError):
            os.link(aside, run.lock)
    aside.unlink()
