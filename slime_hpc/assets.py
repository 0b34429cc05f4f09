"""The one way to the files that ship with slime-hpc: templates, topologies and recipes; in a checkout and in an installed wheel."""

from __future__ import annotations

import difflib
from pathlib import Path

from slime_hpc.errors import ConfigError

_PACKAGE = Path(__file__).parent
_ONE = {"recipes": "recipe", "topologies": "topology"}


def folder(kind: str) -> Path:
    """'sbatch', 'topologies' or 'recipes'."""
    if kind == "recipes":
        return _PACKAGE / "recipes"
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def available(kind: str) -> list[str]:
    """Names of the recipes or topologies."""
    return sorted(path.stem for path in folder(kind).glob("*.toml"))


def find(kind: str, name: str, *, where: str) -> Path:
    """The file of a recipe or topology: `name` is a name, or a path to a .toml file. Raises ConfigError."""
    path = Path(name).expanduser()
    if path.suffix == ".toml" or "/" in name:
        if path.is_file():
            return path
        raise ConfigError(f"There is no file {name}.", where=where, fix="correct the path")
    shipped = folder(kind) / f"{name}.toml"
    if shipped.is_file():
        return shipped
    names = available(kind)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"There is no {_ONE[kind]} {name!r}.", where=where, fix=f"{hint}there are: {', '.join(names)}; or give a path to a .toml file"
    )
