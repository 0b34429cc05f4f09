"""How a sample looks on a terminal: green where it was better than its siblings, red where worse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from slime_hpc.cli.stored_sample import Shown
from slime_hpc.data.tokenize import Decode
from slime_hpc.store.export import finite_or_none

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def draw(shown: Shown, *, decode: Decode | None, tokens: bool) -> RenderableType:
    """Figures, prompt and response; with `tokens` a line for each response token."""
    sample = shown.sample
    prompt = shown.prompt if shown.prompt is not None else f"tokens {' '.join(map(str, sample.prompt_tokens_P.tolist()))}"
    parts: list[RenderableType] = [
        Rule(f"sample {shown.row}: group {sample.group}, answer {sample.index}", align="left", style="dim"),
        Text(_figures(shown)),
        Text.assemble(("prompt    ", "bold"), (visible(prompt), "dim")),
        Text.assemble(("response  ", "bold"), (visible(sample.text), _style(shown.advantage))),
    ]
    return Group(*parts, *([_tokens(shown, decode)] if tokens else []))


def to_json(shown: Shown, *, tokens: bool) -> dict[str, Any]:
    """The same as plain values; a number that is not finite is null."""
    sample = shown.sample
    values: dict[str, Any] = {
        "sample": shown.row,
        "group": sample.group,
        "index": sample.index,
        "prompt": shown.prompt,
        "response": sample.text,
        "reward": finite_or_none(sample.reward),
        "reward_failed": sample.reward_failed,
        "advantage": _finite(shown.advantage),
        "finish": sample.finish.name.lower(),
        "weight_version": sample.weight_version,
        "weight_version_last": sample.weight_version_last,
        "prompt_length": len(sample.prompt_tokens_P),
        "response_length": len(sample.response_tokens_R),
        "trained_tokens": int(sample.loss_mask_R.sum()),
        "logprob_mean": _finite(shown.logprob_mean),
    }
    if tokens or shown.prompt is None:
        values["prompt_tokens"] = sample.prompt_tokens_P.tolist()
    if tokens:
        values["response_tokens"] = sample.response_tokens_R.tolist()
        values["loss_mask"] = sample.loss_mask_R.tolist()
        values["logprobs"] = [finite_or_none(value) for value in sample.logprobs_R.tolist()]
        values["advantages"] = None if shown.advantages_R is None else [finite_or_none(value) for value in shown.advantages_R]
    return values


def visible(text: str) -> str:
    """A model may write what a terminal obeys: control characters but tabs and line ends become their escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _figures(shown: Shown) -> str:
    sample = shown.sample
    first, last = sample.weight_version, sample.weight_version_last
    parts = (
        f"reward {sample.reward:g}{' (failed)' if sample.reward_failed else ''}",
        f"advantage {_signed(shown.advantage)}",
        f"finish {sample.finish.name.lower()}",
        f"weights {first}" if first == last else f"weights {first}-{last}",
        f"tokens {len(sample.prompt_tokens_P)} + {len(sample.response_tokens_R)}, trained {int(sample.loss_mask_R.sum())}",
        f"log-prob {_signed(shown.logprob_mean)} a token",
    )
    return "  ".join(parts)


def _tokens(shown: Shown, decode: Decode | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("position", "token", "log-prob", "trained", "advantage"):
        table.add_column(heading, justify="right")
    table.add_column("text")
    for position, token, logprob, mask, advantage in _token_rows(shown):
        text = Text(visible(repr(decode([token]))[1:-1]) if decode else "", style=_style(advantage if mask else None))
        table.add_row(str(position), str(token), f"{logprob:.4f}", "yes" if mask else "no", _signed(advantage), text)
    return table


def _token_rows(shown: Shown) -> Iterator[tuple[int, int, float, int, float | None]]:
    sample = shown.sample
    for position, token in enumerate(sample.response_tokens_R.tolist()):
        advantage = None if shown.advantages_R is None else shown.advantages_R[position]
        yield position, token, float(sample.logprobs_R[position]), int(sample.loss_mask_R[position]), advantage


def _style(advantage: float | None) -> str:
    if not advantage:
        return ""
    return "green" if advantage > 0 else "red"


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f}"


def _finite(value: float | None) -> float | None:
    return None if value is None else finite_or_none(value)
