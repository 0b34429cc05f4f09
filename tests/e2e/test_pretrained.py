"""A real pretrained model, SmolLM2-135M-Instruct, on the Slurm cluster."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Run

pytestmark = pytest.mark.slow
PHASES = {"rollout": ("seconds_generate", "seconds_reward"), "train": ("seconds_logprobs", "seconds_train"), "push": ("seconds",)}


def test_twenty_steps_with_the_seconds_of_every_phase(smollm2: Run) -> None:
    for kind, names in PHASES.items():
        found = smollm2.events(kind)
        assert len(found) >= 20
        for event in found:
            for name in names:
                assert event[name] >= 0
    assert len(smollm2.events("checkpoint")) == 2
    assert all(event["seconds"] > 0 for event in smollm2.events("checkpoint"))


def test_trainer_and_engine_agree(smollm2: Run) -> None:
    assert max(event["logprob_abs_diff_max"] for event in smollm2.events("train")) <= 1e-3
    assert max(event["verify_abs_diff"] for event in smollm2.events("push")) <= 1e-3


def test_the_log_tells_it(smollm2: Run) -> None:
    line = next(line for line in smollm2.log.splitlines() if line.lstrip().startswith("step 20/20"))
    for word in ("reward", "tokens/s", "generate", "logprobs", "train", "push", "diff"):
        assert word in line


def test_a_pretrained_model_answers(smollm2: Run) -> None:
    assert max(smollm2.rewards) > 0.2
