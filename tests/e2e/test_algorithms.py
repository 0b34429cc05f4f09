"""Every algorithm trains the demo's task: real controller, router, engine, store and trainer, one run after the other on one engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from slime_hpc.observe import events
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from tests.e2e.shared_engine import ALGORITHMS, STEPS

pytestmark = pytest.mark.slow
_TIMEOUT_S = 1800.0
WINDOW = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    cwd = tmp_path_factory.mktemp("algorithms")
    done = subprocess.run([sys.executable, "-m", "tests.e2e.shared_engine"], cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return {name: RunFolder(cwd / "runs" / name / "all") for name in ALGORITHMS}


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def told(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return list(events.by_step(run.metrics, kind).values())


def test_it_learns(runs: dict[str, RunFolder], name: str) -> None:
    rewards = [event["reward_mean"] for event in told(runs[name], "rollout")]
    assert len(rewards) == STEPS
    assert sum(rewards[-WINDOW:]) / WINDOW - sum(rewards[:WINDOW]) / WINDOW >= 0.15


def test_trainer_and_engine_agree(runs: dict[str, RunFolder], name: str) -> None:
    trains = told(runs[name], "train")
    assert len(trains) == STEPS
    assert max(event["logprob_abs_diff_max"] for event in trains if "logprob_abs_diff_max" in event) <= 1e-4
    assert max(event["verify_abs_diff"] for event in told(runs[name], "push")) <= 1e-4


def test_all_start_from_the_same_answers(runs: dict[str, RunFolder]) -> None:
    first = {name: hdf5.read(run.batch(1)) for name, run in runs.items()}
    assert all((batch.tokens_T == first["grpo"].tokens_T).all() for batch in first.values())


def test_the_critic_comes_to_know_what_answers_are_worth(runs: dict[str, RunFolder]) -> None:
    trains = told(runs["ppo"], "train")
    assert [("loss" in event) for event in trains] == [False, False] + [True] * (STEPS - 2)
    assert all("value_loss" in event for event in trains)
    assert trains[0]["value_mean"] == 0
    assert trains[-1]["value_mean"] == pytest.approx(trains[-1]["return_mean"], abs=0.15)
    assert (runs["ppo"].checkpoint(STEPS) / "critic").is_dir()


def test_the_policy_comes_nearer_to_its_teacher(runs: dict[str, RunFolder]) -> None:
    distances = [event["teacher_kl"] for event in told(runs["distillation"], "train")]
    assert distances[0] > 0
    assert sum(distances[-WINDOW:]) < 0.5 * sum(distances[:WINDOW])
