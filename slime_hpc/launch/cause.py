"""One line on why a role failed: what its tasks left, else the last line of a log that looks like an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_ERROR = re.compile(r"\w*(?:Error|Exception)\b|error:|Killed|oom", re.IGNORECASE)
# What Slurm says of the tasks that it ended because another one had failed.
_FOLLOWED = re.compile(
    r"CANCELLED AT|Force Terminated|Terminating StepId|Job step aborted|task [\d,-]+: (?:Terminated|Exited with exit code 143)"
)
_TASK_END = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<rank>[\d,-]+): (?P<end>.+)")


def find_cause(attempt: Path, role: str, status: int) -> str:
    """The earliest cause of all roles' tasks (the others may only have followed it), else what is in this role's logs."""
    causes = sorted((_read(path) for path in attempt.glob("*/cause-*.json")), key=lambda cause: float(cause["time"]))
    if causes:
        first = causes[0]
        return f"{first['role']} rank {first['rank']} on {first['node']}: {first['cause']}"
    line = _last_error_line(attempt / role)
    return f"{_ending(attempt / role, role, status)}{': ' + line if line else ''}"


def is_user_error(attempt: Path, role: str) -> bool:
    """Whether a task of this role found its own input wrong: it would again."""
    return any(_read(path).get("user_error", False) for path in (attempt / role).glob("cause-*.json"))


def forget_causes(attempt: Path, role: str) -> None:
    """Before the role starts again: what it dies of next counts. Its logs stay."""
    for path in (attempt / role).glob("cause-*.json"):
        path.unlink()


def _ending(folder: Path, role: str, status: int) -> str:
    """srun's status is any task's; its log says which task ended first, and how."""
    for line in _lines(folder / "srun.log"):
        if (match := _TASK_END.search(line)) and not _FOLLOWED.search(line):
            return f"{role} rank {match['rank']} on {match['node']}: {match['end']}"
    return f"{role} killed by signal {-status}" if status < 0 else f"{role} ended with status {status}"


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _last_error_line(folder: Path) -> str:
    for path in [*sorted(folder.glob("*_log.err")), *sorted(folder.glob("*_log.out"))]:
        errors = [line for line in _lines(path)[-200:] if _ERROR.search(line) and not _FOLLOWED.search(line)]
        if errors:
            return errors[-1][:300]
    return ""


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()] if path.exists() else []
