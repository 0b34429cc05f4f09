"""Where in a text the answer stands."""

from __future__ import annotations

import re
from typing import Literal

Extract = Literal["all", "first_line", "last_number", "first_line_number"]

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def extract(text: str, how: Extract) -> str:
    """The answer of a text: all of it, its first line, its last number, or the last number of its first line; "" if there is none."""
    if how in ("first_line", "first_line_number"):
        text = text.strip().split("\n")[0]
    if how in ("last_number", "first_line_number"):
        numbers = _NUMBER.findall(text)
        return numbers[-1] if numbers else ""
    return text.strip()
