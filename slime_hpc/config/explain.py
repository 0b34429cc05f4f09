"""What a key of the experiment file means, from the schema itself."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import BaseModel

from slime_hpc.config.load import model_of
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One key."""

    key: str
    description: str
    type: str
    default: str
    """As TOML would write it; "unset" for none; "" when the key must be given or is a table."""
    keys: tuple[str, ...] = ()
    """Keys below, when it is a table."""


def explain(key: str) -> Explanation:
    """Explain a dotted key, or "" for the whole file. Raises ConfigError with the closest key.

    The position in a list of tables may be given, as error messages do: `rollout.groups.0.engines`.
    Below a table that is passed through (`rollout.sglang`), the table is explained.
    """
    model: type[BaseModel] | None = Experiment
    field: Any = None
    known: list[str] = []
    for part in key.split(".") if key else []:
        if field is not None and part.isdigit() and get_origin(field.annotation) is list:
            continue
        if field is not None and get_origin(field.annotation) is dict:
            break
        if model is None or part not in model.model_fields:
            raise _unknown(key)
        known.append(part)
        field = model.model_fields[part]
        model = model_of(field.annotation)
    if field is None:
        return Explanation(key="", description=Experiment.__doc__ or "", type="file", default="", keys=tuple(Experiment.model_fields))
    name = ".".join(known)
    many = get_origin(field.annotation) is list
    return Explanation(
        key=name,
        description=field.description or "",
        type=("list of tables" if many else "table") if model else _type_name(field),
        default="" if model else default_text(field),
        keys=tuple(f"{name}.{below}" for below in model.model_fields) if model else (),
    )


def all_keys(model: type[BaseModel] = Experiment, prefix: str = "") -> list[str]:
    """Every dotted key of the experiment file."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{prefix}{name}")
        if (inner := model_of(field.annotation)) is not None:
            keys.extend(all_keys(inner, f"{prefix}{name}."))
    return keys


def _unknown(key: str) -> ConfigError:
    known = sorted(all_keys())
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    return ConfigError(
        f"There is no key {key!r}.",
        where="explain",
        fix=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}",
    )


def _type_name(field: Any) -> str:
    text = _annotation_name(field.annotation)
    bounds = [f"{sign} {getattr(part, name)}" for part in field.metadata for name, sign in _BOUNDS.items() if hasattr(part, name)]
    return f"{text}, {' and '.join(bounds)}" if bounds else text


def _annotation_name(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is Annotated:
        return _annotation_name(parts[0])
    if origin is list:
        return f"list of {_annotation_name(parts[0])}"
    if origin is dict:
        return "table of any keys"
    if parts:
        return " or ".join(map(_annotation_name, parts))
    return "unset" if annotation is NoneType else str(annotation.__name__)


def default_text(field: Any) -> str:
    """A field's default as TOML would write it; "unset" for none, "" when the key must be given."""
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    return "{}" if value == {} else tomli_w.dumps({"_": value}).removeprefix("_ = ").strip()
