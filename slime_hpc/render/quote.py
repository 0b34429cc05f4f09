"""Filters that every template value passes through, so that no value can become shell code or a directive of its own."""

from __future__ import annotations

import re
import shlex

from slime_hpc.errors import PlanError


def sh(value: object) -> str:
    """One shell word."""
    return shlex.quote(str(value))


def comment(value: object) -> str:
    """Text behind a `#`: control characters, which could end the comment, are shown as escapes."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(value))


def identifier(value: object) -> str:
    """Name of an environment variable. Raises PlanError for anything else."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(value)):
        raise PlanError(f"{value!r} is no name of an environment variable.", where="environment", fix="letters, digits and _")
    return str(value)


def file_pattern(path: object) -> str:
    """A path inside a Slurm file name pattern (sbatch(1), "FILENAME PATTERN"). Raises PlanError for one that no pattern can hold."""
    text = str(path)
    if "\\" in text or not text.isprintable():
        raise PlanError(f"Slurm cannot write to {text!r}.", where="runs", fix="choose a folder without backslashes and control characters")
    return text.replace("%", "%%")


def directive(value: object) -> str:
    """One sbatch option, which sbatch splits as a shell would. Raises PlanError when it holds a line break."""
    text = str(value)
    if not text.isprintable() or not text.startswith("-"):
        raise PlanError(
            f"{text!r} is no sbatch option.", where="slurm.extra, scheduler.directives", fix="one option, e.g. '--reservation=x'"
        )
    name, separator, argument = text.partition("=")
    # sbatch reads an unquoted # as the start of a comment.
    return f"{name}={shlex.quote(argument)}" if separator else text
