"""What a key of the experiment file means, from the schema itself."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from slime_hpc.config.load import model_of
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One key."""

    key: str
    description: str
    type: str
    default: str
    """As TOML would write it; "" when the key must be given or is a table."""
    keys: tuple[str, ...] = ()
    """Keys below, when it is a table."""


def explain(key: str) -> Explanation:
    """Explain a dotted key, or "" for the whole file. Raises ConfigError with the closest key."""
    model: type[BaseModel] | None = Experiment
    field: Any = None
    for part in [part for part in key.split(".") if part]:
        if model is None or part not in model.model_fields:
            known = sorted(all_keys())
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            raise ConfigError(
                f"There is no key {key!r}.",
                where="explain",
                fix=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}",
            )
        field = model.model_fields[part]
        model = model_of(field.annotation)
    if field is None:
        return Explanation(key="", description=Experiment.__doc__ or "", type="file", default="", keys=tuple(Experiment.model_fields))
    return Explanation(
        key=key,
        description=field.description or "",
        type="table" if model else _type_name(field),
        default="" if model or field.is_required() else _default(field),
        keys=tuple(f"{key}.{name}" for name in model.model_fields) if model else (),
    )


def all_keys(model: type[BaseModel] = Experiment, prefix: str = "") -> list[str]:
    """Every dotted key of the experiment file."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{prefix}{name}")
        if (inner := model_of(field.annotation)) is not None:
            keys.extend(all_keys(inner, f"{prefix}{name}."))
    return keys


def _type_name(field: Any) -> str:
    text = str(field.annotation)
    if text.startswith("<class"):
        text = field.annotation.__name__
    for long, short in (("typing.", ""), ("Literal", "one of "), ("NoneType", "unset"), ("None", "unset")):
        text = text.replace(long, short)
    bounds = ", ".join(str(part) for part in field.metadata if type(part).__name__ in ("Ge", "Gt", "Le", "Lt"))
    return f"{text} ({bounds})" if bounds else text


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None or value is PydanticUndefined else repr(value)
