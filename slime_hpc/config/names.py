"""References to code in experiment files: "module:attribute"."""

from __future__ import annotations

import importlib
import re
from typing import Any

from slime_hpc.errors import ConfigError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def load(reference: str, *, where: str) -> Any:
    """Import what "module:attribute" names. Raises ConfigError with the key `where` that holds it."""
    module_name, _, attribute = reference.partition(":")
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f"{reference!r} is not of the form 'module:attribute'.", where=where, fix="e.g. 'my_rewards:score'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{reference!r}: no module {error.name!r}.", where=where, fix="install it where the job runs, or correct the name"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{reference!r}: module {module_name!r} fails when it is imported: {type(error).__name__}: {error}.",
            where=where,
            fix="correct the module",
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"Module {module_name!r} has no {attribute!r}.", where=where, fix="correct the name after the colon")
    return getattr(module, attribute)
