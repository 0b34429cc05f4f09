"""Slurm's host lists: `n[1-3,7],gpu01` and back (scontrol show hostnames / hostlist)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from slime_hpc.errors import ConfigError

_MOST = 65_536
"""Names one bracket may stand for; Slurm's own limit."""

_ITEM = re.compile(r"(?:[^\[\],\s]+|\[[0-9,\- ]+\])+")
_PIECE = re.compile(r"([^\[\]]+)|\[([^\[\]]+)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(hostlist: str) -> list[str]:
    """Names in order, duplicates kept. Raises ConfigError for text that is no host list."""
    return [name for item in _split(hostlist) for name in _expand_one(item, hostlist)]


def compress(names: Sequence[str]) -> str:
    """A host list that expands to `names`: neighbours that differ in a trailing number share brackets."""
    parts: list[str] = []
    for (prefix, numbered), group in itertools.groupby(map(_cut, names), key=lambda cut: (cut[0], cut[1] != "")):
        if not numbered:
            parts.extend(prefix for _ in group)
            continue
        runs: list[list[str]] = []
        for _, digits in group:
            if runs and digits == _successor(runs[-1]):
                runs[-1].append(digits)
            else:
                runs.append([digits])
        texts = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        parts.append(f"{prefix}[{','.join(texts)}]" if len(texts) > 1 or len(runs[0]) > 1 else prefix + texts[0])
    return ",".join(parts)


def _cut(name: str) -> tuple[str, str]:
    """The name without its trailing number, and the number."""
    prefix = name.rstrip("0123456789")
    return prefix, name[len(prefix) :]


def _successor(run: list[str]) -> str:
    """The number after the last of a run, in the width that a range gives it: that of the range's first."""
    return str(int(run[-1]) + 1).zfill(len(run[0]))


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
    if not _ITEM.fullmatch(item):
        raise _wrong(whole, f"{item!r} is no name")
    pieces = [
        [literal] if literal else [number for part in ranges.split(",") for number in _numbers(part.strip(), whole)]
        for literal, ranges in _PIECE.findall(item)
    ]
    return ["".join(combination) for combination in itertools.product(*pieces)]


def _numbers(part: str, whole: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise _wrong(whole, f"{part!r} is no range")
    first, last = match.group(1), match.group(2) or match.group(1)
    count = int(last) - int(first) + 1
    if not 1 <= count <= _MOST:
        raise _wrong(whole, f"{part!r} stands for {max(0, count)} names")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _wrong(whole: str, why: str) -> ConfigError:
    return ConfigError(f"{whole!r} is not a host list: {why}.", where="SLURM_JOB_NODELIST", fix="e.g. n[1-4,7]")
