"""docs/algorithms.md names what the registries name, and keys that there are."""

import re
from pathlib import Path

import pytest

from slime_hpc.config import algorithms
from slime_hpc.config.schema import Algorithm, Correction

DOC = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
REGISTRIES = {
    "Advantages": algorithms.ADVANTAGES,
    "Losses": algorithms.LOSSES,
    "Means": algorithms.REDUCERS,
    "KL divergence from the reference": algorithms.KL_ESTIMATORS,
    "Corrections of the mismatch between trainer and engine": algorithms.CORRECTIONS,
}


def section(heading: str) -> str:
    return DOC.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """Cells of the first table, without its heading."""
    rows = text.split("\n|", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.parametrize("heading", REGISTRIES)
def test_the_table_names_what_the_registry_names(heading):
    assert [row[0].strip("` |") for row in table(section(heading))] == list(REGISTRIES[heading])


def test_old_log_probs_are_those_of_the_schema():
    named = [row[0].strip("` |") for row in table(section("Old log-probs and staleness"))]
    assert named == list(Algorithm.model_fields["old_logprobs"].annotation.__args__)


def test_keys_of_the_correction_are_in_the_schema():
    keys = re.findall(r"^\| `correction\.(\w+)`", DOC, re.MULTILINE)
    assert len(keys) == 3
    assert set(keys) <= set(Correction.model_fields)
