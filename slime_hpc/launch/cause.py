"""One line on why a role failed: what its tasks left, else the last line of a log that looks like an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_ERROR = re.compile(r"(?:\w*(?:Error|Exception)\b|error:|srun:|Killed|oom)", re.IGNORECASE)


def find_cause(attempt: Path, role: str, status: int) -> str:
    """The earliest cause of all roles' tasks (the others may only have followed it), else from this role's logs."""
    causes = sorted((_read(path) for path in attempt.glob("*/cause-*.json")), key=lambda cause: float(cause["time"]))
    if causes:
        first = causes[0]
        return f"{first['role']} rank {first['rank']} on {first['node']}: {first['cause']}"
    ending = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
    line = _last_error_line(attempt / role)
    return f"{role} {ending}{': ' + line if line else ''}"


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _last_error_line(folder: Path) -> str:
    for path in [*sorted(folder.glob("*_log.err")), *sorted(folder.glob("srun.log")), *sorted(folder.glob("*_log.out"))]:
        lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]]
        errors = [line for line in lines if _ERROR.search(line)]
        if errors:
            return errors[-1][:300]
    return ""
