"""From TOML files and --set options to one Experiment, or to an error that names file and key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from slime_hpc import assets
from slime_hpc.config.schema import Experiment
from slime_hpc.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

Origins = dict[str, str]
"""Which file, or --set, each dotted key came from."""

_PATHS = (("model", "path"), ("teacher", "path"), ("data", "prompts"), ("eval", "prompts"), ("runs",))


def load_experiment(files: Sequence[str], settings: Sequence[str] = ()) -> Experiment:
    """Overlay files left to right, then `key=value` settings; resolve paths; validate. Raises ConfigError.

    Tables merge key by key; any other value, lists of tables too, replaces the one below. `key=` without a value removes the key.
    """
    values: dict[str, Any] = {}
    origins: Origins = {}
    for name in files:
        path = assets.find("recipes", name, where="experiment")
        _overlay(values, read_toml(path), str(path), origins)
    for setting in settings:
        _overlay(values, parse_setting(setting), f"--set {setting}", origins)
    return validate(Experiment, _resolve_paths(values), origins, default_origin=", ".join(files) or "--set")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's values. Raises ConfigError with file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.", where=str(path), fix="correct the path or its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.", where=str(path), fix="save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.", where=str(path), fix="correct that line") from error


def parse_setting(setting: str) -> dict[str, Any]:
    """`a.b.c=VALUE` as nested tables. VALUE is TOML; for a key that holds text, and where it is not TOML, it is text; "" is None."""
    key, separator, text = setting.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"{setting!r} is not of the form key=value.", where="--set", fix="e.g. --set trainer.nodes=2")
    value = _setting_value(parts, text.strip())
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def _setting_value(parts: Sequence[str], text: str) -> Any:
    if not text:
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    # 02:00:00 is a time of day in TOML, and 2024 a number; as a time limit or an account they are text.
    is_text = len(parsed) > 1 or (not isinstance(value, str) and _holds_text(parts))
    return text if is_text else value


def _holds_text(parts: Sequence[str]) -> bool:
    model: type[BaseModel] | None = Experiment
    annotation: Any = None
    for part in parts:
        if model is None or part not in model.model_fields:
            return False
        annotation = model.model_fields[part].annotation
        model = model_of(annotation)
    return _is_text(annotation)


def _is_text(annotation: Any) -> bool:
    """str, also when it may be unset or has a pattern; not a list of str."""
    if get_origin(annotation) in (list, dict):
        return False
    return annotation is str or any(map(_is_text, get_args(annotation)))


def validate(schema: type[M], values: Mapping[str, Any], origins: Origins, *, default_origin: str) -> M:
    """Build the model, or raise the first problem as a ConfigError with what, where and fix."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        # A misspelt key is also a missing one: name the cause.
        first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        others = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        what, fix = _explain(schema, first, key)
        raise ConfigError(what + others, where=f"{_origin(key, origins, default_origin)}: {key or 'file'}", fix=fix) from None


def _overlay(base: dict[str, Any], layer: Mapping[str, Any], origin: str, origins: Origins, prefix: str = "") -> None:
    for key, value in layer.items():
        dotted = f"{prefix}{key}"
        origins[dotted] = origin
        if value is None:
            base.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            _overlay(base[key], value, origin, origins, f"{dotted}.")
        else:
            base[key] = value


def _origin(key: str, origins: Origins, default: str) -> str:
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        if (origin := origins.get(".".join(parts[:end]))) is not None:
            return origin
    return default


def _resolve_paths(values: dict[str, Any]) -> dict[str, Any]:
    values.setdefault("runs", "runs")
    for keys in _PATHS:
        table: Any = values
        for key in keys[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(path := table.get(keys[-1]), str):
            table[keys[-1]] = resolve_path(path)
    return values


def resolve_path(path: str) -> str:
    """Absolute; `recipe:NAME` is a file or folder that ships with the recipes."""
    if path.startswith("recipe:"):
        return str(assets.folder("recipes") / path.removeprefix("recipe:"))
    return str(Path(path).expanduser().absolute())


def _explain(schema: type[BaseModel], problem: Any, key: str) -> tuple[str, str]:
    """What is wrong, and what to change."""
    kind, message, value, location = problem["type"], problem["msg"], problem.get("input"), problem["loc"]
    if kind == "extra_forbidden":
        known = _fields_at(schema, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"Unknown key {location[-1]!r}.", f"{hint}known here: {', '.join(known)}"
    meaning = _description(schema, location) if location else "correct the file"
    if location and schema is Experiment:
        meaning += f" See `slime-hpc explain {key}`"
    if kind == "missing":
        return f"{key} is missing.", f"set it: {meaning}"
    if kind == "value_error":
        return message.removeprefix("Value error, "), meaning
    if kind == "string_type":
        return f"{key} = {value} is not text.", f'write it in quotes: "{value}"'
    return f"{key} = {value!r}: {message}.", meaning


def _description(schema: type[BaseModel], location: Sequence[Any]) -> str:
    """What the schema says of the key, or of the closest table above it that it knows."""
    model: type[BaseModel] | None = schema
    text = ""
    for part in location:
        if model is None or part not in model.model_fields:
            continue
        field = model.model_fields[part]
        text, model = field.description or "", model_of(field.annotation)
    return text


def _fields_at(schema: type[BaseModel], location: Sequence[Any]) -> list[str]:
    model: Any = schema
    for part in location:
        if isinstance(part, int):
            continue
        model = model_of(model.model_fields[part].annotation)
    return list(model.model_fields)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The table type inside an annotation such as `Section | None` or `list[Section]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := model_of(part)) is not None), None)
