"""Reads a growing text file from where the last reading ended."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """The lines of a file that others append to; opens it anew each time, as network file systems show appends only then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """Whole lines since the last call, without line ends; none while the file is not there. A line without end waits for its end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in whole]
