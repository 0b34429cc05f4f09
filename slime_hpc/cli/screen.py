"""The two consoles: results on stdout, narration on stderr."""

from __future__ import annotations

from rich.console import Console

_WIDTH = 140
"""Where nobody has a terminal (a log, a pipe), rich would fold tables at 80."""


def stdout() -> Console:
    """For what the user asked for."""
    return _console(stderr=False)


def stderr() -> Console:
    """For what happens meanwhile."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console
