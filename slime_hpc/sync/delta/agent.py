"""Beside every engine: brings the node's copy of the weights to each version that the trainer publishes, and says so.

Both directions are small files under control/weights/<attempt>/, written by rename: `head.json` names the newest version, `<engine>.json`
what the engine's node holds, or why it does not. No port is opened. The agent works while the engine generates; only loading needs a pause.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slime_hpc.control.context import RoleContext
from slime_hpc.control.endpoint import write_atomic
from slime_hpc.errors import SlimeError
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.delta.chain import Link

if TYPE_CHECKING:
    from slime_hpc.sync.delta.local_copy import LocalCopy

POLL_S = 0.1
_MOST_THREADS = 16
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent has made of the newest version it saw."""

    link: Link | None
    """The version; None before the first."""
    model: str
    """Folder of the copy, on the engine's node."""
    error: str = ""
    """Why the copy does not hold the version; empty when it does."""
    where: str = ""
    seconds: float = 0.0
    num_bytes: int = 0
    """Read from the run folder for this version."""


def publish_head(run: RunFolder, attempt: int, link: Link) -> None:
    """Make a version the newest one."""
    write_atomic(run.weights_head(attempt), json.dumps(asdict(link)))


def read_report(run: RunFolder, attempt: int, engine: str) -> Report | None:
    """What an engine's agent says; None before it has begun."""
    value = _read(run.weights_report(attempt, engine))
    return Report(**{**value, "link": Link(**value["link"]) if value["link"] else None}) if value else None


def _read(path: Path) -> dict | None:
    try:
        value: dict = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return value


class Agent:
    """Follows the head of one attempt's versions."""

    def __init__(self, run: RunFolder, attempt: int, engine: str, copy: LocalCopy) -> None:
        """Says that it is there."""
        self._run = run
        self._attempt = attempt
        self._engine = engine
        self._copy = copy
        self._seen: Link | None = None
        self._report()

    def follow(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        while not stop.wait(POLL_S):
            self.look()

    def leave(self) -> None:
        """Say no more; remove what was said."""
        self._run.weights_report(self._attempt, self._engine).unlink(missing_ok=True)

    def look(self) -> None:
        """Catch up if there is a version that was not seen yet. A failure is reported, and the next version tried anew."""
        value = _read(self._run.weights_head(self._attempt))
        if value is None or Link(**value) == self._seen:
            return
        link = self._seen = Link(**value)
        start, before = time.monotonic(), self._copy.num_bytes
        error, where = "", ""
        try:
            self._copy.catch_up(link)
        except SlimeError as failure:
            error, where = failure.what, failure.where
        except OSError as failure:
            error, where = f"{failure.strerror or failure}", str(failure.filename2 or failure.filename or self._copy.model)
        except Exception as failure:
            # Whatever it is, the trainer must hear of it and not wait until its time is over.
            error = f"{type(failure).__name__}: {failure}"
        self._report(link, error=error, where=where, seconds=time.monotonic() - start, num_bytes=self._copy.num_bytes - before)

    def _report(self, link: Link | None = None, *, error: str = "", where: str = "", seconds: float = 0.0, num_bytes: int = 0) -> None:
        report = Report(link=link, model=str(self._copy.model), error=error, where=where, seconds=seconds, num_bytes=num_bytes)
        write_atomic(self._run.weights_report(self._attempt, self._engine), json.dumps(asdict(report)))


def copy_folder(run: RunFolder, local: str) -> Path:
    """Where a node's copy of a run's weights lies: the same for all engines of the node and user."""
    digest = hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:12]
    return Path(local or tempfile.gettempdir()) / f"slime-hpc-{os.getuid()}-{run.path.name}-{digest}"


def threads_of(context: RoleContext) -> int:
    """How many threads a task gives to chunks: one for each core it has."""
    return max(1, min(context.role.cpus_per_task, len(os.sched_getaffinity(0)), _MOST_THREADS))


@contextlib.contextmanager
def beside(context: RoleContext, engine: str) -> Iterator[None]:
    """The agent of an engine, where the experiment's transport needs one, for as long as the engine runs."""
    sync = context.experiment.sync
    if sync.transport != "delta":
        yield
        return
    # Torch, which it needs, takes seconds to import and memory to hold.
    from slime_hpc.sync.delta.local_copy import LocalCopy

    copy = LocalCopy(copy_folder(context.run, sync.delta.local), context.run.weights, threads=threads_of(context))
    stop = threading.Event()
    agent = Agent(context.run, context.attempt, engine, copy)
    thread = threading.Thread(target=agent.follow, args=(stop,), name="weights agent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_END_S)
        agent.leave()
        copy.close()
