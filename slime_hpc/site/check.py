"""One line of the preflight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, how it stands, and what to do about it."""

    name: str
    status: Status
    what: str
    fix: str = ""
    """Empty when all is well."""


def ok(name: str, what: str) -> Check:
    """All is well."""
    return Check(name=name, status="ok", what=what)


def warn(name: str, what: str, fix: str) -> Check:
    """A run may suffer from it."""
    return Check(name=name, status="warn", what=what, fix=fix)


def fail(name: str, what: str, fix: str) -> Check:
    """No run can succeed."""
    return Check(name=name, status="fail", what=what, fix=fix)
