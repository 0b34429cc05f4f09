"""The batch files of a run against its journal. Reads only; repairs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slime_hpc.errors import DataError
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from slime_hpc.store.journal import Entry, Journal
from slime_hpc.store.summary import Summary, read_summary

_NAME = re.compile(r"step_(\d+)\.h5")


class State(StrEnum):
    """How the batch of a step stands."""

    SEALED = "sealed"
    TORN = "torn"
    """Not a whole HDF5 file."""
    CHANGED = "changed"
    """Whole, but not the bytes that were sealed."""
    MISSING = "missing"
    """Named by the journal, or between steps that are, without a file."""
    UNLISTED = "unlisted"
    """A file that the journal does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The batch of one step."""

    step: int
    path: Path
    state: State
    why: str
    """Empty for a sealed one."""
    num_bytes: int
    """0 for a missing one."""
    summary: Summary | None
    """None for a torn or a missing one."""


def look(run: RunFolder, *, checksums: bool) -> Iterator[Found]:
    """Every step from the first to the last that has a file or a line in the journal, in order.

    With `checksums` each file is read whole; without, a whole file counts as sealed. Raises DataError for what this user may not read.
    """
    # The folder first: a batch that is sealed meanwhile is then in the journal at the latest when that is read.
    files = {int(name[1]): path for path in _files(run) if (name := _NAME.fullmatch(path.name))}
    entries = {entry.step: entry for entry in Journal(run).entries()}
    steps = files.keys() | entries.keys()
    for step in range(min(steps), max(steps) + 1) if steps else ():
        entry = entries.get(step)
        yield _judge(step, run.batches / entry.file if entry else files.get(step, run.batch(step)), entry, checksums=checksums)


def _files(run: RunFolder) -> list[Path]:
    return list(run.batches.iterdir()) if run.batches.is_dir() else []


def _judge(step: int, path: Path, entry: Entry | None, *, checksums: bool) -> Found:
    def found(state: State, why: str = "", summary: Summary | None = None) -> Found:
        size = 0 if state is State.MISSING else path.stat().st_size
        return Found(step=step, path=path, state=state, why=why, num_bytes=size, summary=summary)

    if not path.is_file():
        return found(State.MISSING, f"there is no file {path.name}" + ("" if entry else ", and index.jsonl has no line of this step"))
    try:
        summary = read_summary(path)
    except DataError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return found(State.TORN, error.what)
    if entry is None:
        return found(State.UNLISTED, f"{path.name} is whole, but index.jsonl does not name it", summary)
    if checksums:
        try:
            hdf5.verify(path, entry.sha256)
        except DataError as error:
            return found(State.CHANGED, error.what, summary)
    return found(State.SEALED, summary=summary)
