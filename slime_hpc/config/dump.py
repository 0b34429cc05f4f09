"""A validated file back to TOML that loads to the same object."""

from __future__ import annotations

from typing import Any

import tomli_w
from pydantic import BaseModel


def to_toml(model: BaseModel) -> str:
    """Every value, defaults included; keys that are unset (None) are left out, since TOML has no null."""
    return tomli_w.dumps(_without_none(model.model_dump()))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
