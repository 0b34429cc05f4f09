"""Slurm's host lists: `n[1-3,7],gpu01` and back (scontrol show hostnames / hostlist)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from slime_hpc.errors import ConfigError

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


def expand(hostlist: str) -> list[str]:
    """Names in order, duplicates kept. Raises ConfigError for text that is no host list."""
    return [name for item in _split(hostlist) for name in _expand_one(item, hostlist)]


def compress(names: Sequence[str]) -> str:
    """A host list that expands to `names`: neighbours that differ in a trailing number of one width share brackets."""
    parts = []
    for (prefix, width), group in itertools.groupby(
        map(_cut, names), key=lambda cut: (cut[0], len(cut[1]) if cut[1].startswith("0") and cut[1] != "0" else 0)
    ):
        numbers = [digits for _, digits in group]
        if numbers == [""] * len(numbers):
            parts.extend([prefix] * len(numbers))
        elif len(numbers) == 1:
            parts.append(prefix + numbers[0])
        else:
            parts.append(f"{prefix}[{','.join(_runs(numbers, width))}]")
    return ",".join(parts)


def _cut(name: str) -> tuple[str, str]:
    match = re.search(r"\d+$", name)
    return (name[: match.start()], match.group()) if match else (name, "")


def _runs(numbers: list[str], width: int) -> Iterator[str]:
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: int(pair[1]) - pair[0]):
        run = [digits for _, digits in group]
        yield run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]


def _expand_one(item: str, whole: str) -> list[str]:
    pieces: list[list[str]] = []
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", item):
        pieces.append([literal] if literal else [number for part in ranges.split(",") for number in _numbers(part, whole)])
    if item.count("[") != item.count("]") or not pieces:
        raise ConfigError(f"{whole!r} is not a host list.", where="SLURM_JOB_NODELIST", fix="e.g. n[1-4,7]")
    return ["".join(combination) for combination in itertools.product(*pieces)]


def _numbers(part: str, whole: str) -> list[str]:
    match = _RANGE.match(part.strip())
    if match is None:
        raise ConfigError(f"{whole!r} is not a host list: {part!r} is no range.", where="SLURM_JOB_NODELIST", fix="e.g. n[1-4,7]")
    first, last = match.group(1), match.group(2) or match.group(1)
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
