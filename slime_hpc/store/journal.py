"""The journal of sealed batches: one JSON line each, appended and flushed to disk after the file it speaks of.

It is the data's half of a checkpoint: the prompt source's position after every step, so that any step can be gone on from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slime_hpc.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One sealed batch."""

    step: int
    file: str
    sha256: str
    samples: int
    tokens: int
    weight_version: int
    source_state: dict[str, Any]
    """Position of the prompt source after the batch."""


class Journal:
    """index.jsonl of a run; of two lines for one step the later counts."""

    def __init__(self, run: RunFolder) -> None:
        self._path = run.batch_index
        self._entries: dict[int, Entry] = {}
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                # A line torn by a crash speaks of a batch that is then generated again.
                value = _parse(line)
                if value is not None:
                    self._entries[value.step] = value

    def entries(self) -> list[Entry]:
        """Every sealed batch, in step order."""
        return [self._entries[step] for step in sorted(self._entries)]

    def entry(self, step: int) -> Entry | None:
        """The batch of a step, if it was sealed."""
        return self._entries.get(step)

    def intact(self, step: int) -> bool:
        """Whether the file of a step is, to the byte, the one that was sealed; reads all of it."""
        entry = self._entries.get(step)
        if entry is None:
            return False
        try:
            with (self._path.parent / entry.file).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
        except FileNotFoundError:
            return False

    def state_after(self, step: int) -> Mapping[str, Any] | None:
        """Position of the prompt source after a step; None when that step is not in the journal."""
        entry = self._entries.get(step)
        return None if entry is None else entry.source_state

    def append(self, entry: Entry) -> None:
        """Record a sealed batch, durably."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # After a torn line the next one must not be glued to it.
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (b"\n" if torn else b"") + json.dumps(asdict(entry)).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._entries[entry.step] = entry


def _parse(line: str) -> Entry | None:
    try:
        return Entry(**json.loads(line))
    except (json.JSONDecodeError, TypeError):
        return None
