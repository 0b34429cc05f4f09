"""Writes docs/numerics.md: how far the trainer is from Hugging Face and torch AdamW, case by case. `python tools/numerics.py`, minutes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.trainer.checks import CASES, Case  # noqa: E402
from tests.trainer.launch import launch  # noqa: E402

HEAD = """# How far the trainer is from Hugging Face

Every case trains a tiny model in float32, on CPUs over gloo, and does the same in plain PyTorch: the Hugging Face model with eager
attention, one unpacked sample at a time, torch's AdamW. `tools/numerics.py` writes this table; `tests/trainer/test_trainer.py` runs the
same cases and holds their bounds: log-probs 5e-6, gradient norms 1e-5 of themselves, weights bit-equal after load and export.

- **log-probs**: largest difference over whole sequences, before training;
- **loss**: largest difference of any step;
- **gradient norm**: largest difference of any step, relative;
- **weights**: largest difference after the last step; **moved**: the farthest that any weight has moved. AdamW turns a gradient that
  rounding leaves at 1e-9 instead of 0 into a part of a step.

| case | ranks | model | log-probs | loss | gradient norm | weights | moved |
|---|---|---|---|---|---|---|---|
"""


def row(case: Case, figures: dict[str, Any]) -> str:
    """A line of the table."""
    # Steps in which the critic warms up alone have no policy loss.
    values, expected = [value for value in figures["values"] if "loss" in value], figures["expected"]
    loss = max(abs(value["loss"] - wanted) for value, wanted in zip(values, expected["loss"], strict=True))
    norm = max(abs(value["grad_norm"] / wanted - 1) for value, wanted in zip(values, expected["grad_norm"], strict=True))
    numbers = [f"{x:.1e}" for x in (figures["score"], loss, norm, figures["weights"], figures["moved"])]
    return f"| {case.name} | {case.world} | {case.kind} | {' | '.join(numbers)} |\n"


def main() -> None:
    """Run all cases and write the table."""
    figures: dict[int, dict[str, Any]] = {}
    for world in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            figures[world] = launch(Path(folder), world, [case.name for case in CASES if case.world == world])
    text = HEAD + "".join(row(case, figures[case.world][case.name]) for case in CASES)
    (ROOT / "docs" / "numerics.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
