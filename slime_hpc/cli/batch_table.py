"""The tables of `slime-hpc rollouts ls` and `stats`, and the same as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from slime_hpc.store.audit import Found
from slime_hpc.store.export import finite_or_none
from slime_hpc.store.summary import Summary


def overview(found: Iterable[Found]) -> Table:
    """A line for each batch."""
    headings = ("step", "samples", "tokens", "reward", "truncated", "failed", "weights", "bytes", "state")
    return _table(headings, (_list_row(each) for each in found))


def figures(found: Iterable[Found]) -> Table:
    """Lengths, rewards, spread and truncation of each batch that can be read."""
    headings = ("step", "prompt", "response", "median", "longest", "reward", "std", "lowest", "highest", "with spread", "truncated")
    return _table(headings, (_stats_row(each.step, each.summary) for each in found if each.summary))


def to_json(found: Found) -> dict[str, Any]:
    """One batch; without figures when it cannot be read. A number that is not finite is null."""
    figures = asdict(found.summary) if found.summary else {}
    finite = {name: finite_or_none(value) if isinstance(value, float) else value for name, value in figures.items()}
    return {"step": found.step, "file": str(found.path), "state": found.state, "bytes": found.num_bytes, **finite}


def _list_row(found: Found) -> tuple[str, ...]:
    figures: tuple[Any, ...] = ("",) * 6
    if summary := found.summary:
        first, last = summary.weight_version, summary.weight_version_last
        versions = "" if first is None else f"{first}" if first == last else f"{first}-{last}"
        figures = (
            summary.samples, summary.tokens, _figure(summary.reward_mean), summary.truncated, summary.reward_failed, versions,
        )  # fmt: skip
    return (str(found.step), *map(str, figures), str(found.num_bytes), str(found.state))


def _stats_row(step: int, summary: Summary) -> tuple[str, ...]:
    lengths = (_figure(value, 1) for value in (summary.prompt_mean, summary.response_mean, summary.response_median))
    rewards = (_figure(value) for value in (summary.reward_mean, summary.reward_std, summary.reward_min, summary.reward_max))
    longest = "" if summary.response_max is None else str(summary.response_max)
    return (str(step), *lengths, longest, *rewards, f"{summary.groups_with_spread}/{summary.groups}", f"{summary.truncated}")


def _figure(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
