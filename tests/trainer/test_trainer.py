"""The trainer on one, two and four ranks, each world launched once: `tests.trainer.checks` measures, the tests here judge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checks import CASES, Case
from tests.trainer.launch import launch

NUMERICS = Path(__file__).parents[2] / "docs" / "numerics.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Figures of every case by world size."""
    return {world: launch(tmp_path_factory.mktemp(f"world-{world}"), world) for world in (1, 2, 4)}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    value: Case = request.param
    return value


@pytest.fixture
def figures(case: Case, results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = results[case.world][case.name]
    return value


def test_weights_make_the_round_trip_bit_for_bit(figures: dict[str, Any]) -> None:
    assert figures["exact"]
    assert figures["names"]


def test_logprobs_are_those_of_hugging_face(figures: dict[str, Any]) -> None:
    assert figures["score"] < 5e-6
    first = next(v for v in figures["values"] if "logprob_abs_diff_max" in v)
    assert first["logprob_abs_diff_max"] == pytest.approx(figures["engine_diff"], abs=1e-5)


def test_losses_and_gradients_are_those_of_plain_pytorch(figures: dict[str, Any]) -> None:
    expected = figures["expected"]
    assert len(expected["loss"]) >= 2
    for name, tolerance in (("loss", {"abs": 2e-5}), ("grad_norm", {"rel": 1e-5})):
        assert [v[name] for v in figures["values"] if name in v] == pytest.approx(expected[name], **tolerance)
    for name in ("value_loss", "critic_grad_norm"):
        assert [v[name] for v in figures["values"] if name in v] == pytest.approx(expected[name], rel=1e-4)


def test_the_critic_learns_alone_while_it_warms_up(results: dict[int, dict[str, Any]]) -> None:
    first, second, _ = results[1]["ppo-kl-warmup"]["values"]
    assert "loss" not in first and first["value_loss"] > 0 and first["critic_grad_norm"] > 0
    assert "loss" in second
    assert results[1]["ppo"]["values"][-1]["value_clip_fraction"] > 0


def test_the_distance_from_a_teacher_is_reported(results: dict[int, dict[str, Any]]) -> None:
    distances = [values["teacher_kl"] for values in results[1]["distillation"]["values"]]
    assert len(set(distances)) == 3
    assert all(values["teacher_kl"] == 0 for values in results[1]["qwen3"]["values"])


def test_training_moves_weights_as_plain_pytorch_does(figures: dict[str, Any]) -> None:
    # AdamW turns a gradient that rounding leaves at 1e-9 instead of 0 into a part of a step: hence a share of the way, not an epsilon.
    assert figures["moved"] > 1e-3
    assert figures["weights"] < 0.1 * figures["moved"]


def test_clipping_and_divergence_are_reported(results: dict[int, dict[str, Any]]) -> None:
    first = results[1]["two-updates-kl-token-mean"]["values"][0]
    assert 0 < first["clip_fraction"] < 1
    assert first["kl"] > 0
    assert first["ratio_max"] > 1.1


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_loaded_checkpoint_trains_on_bit_for_bit(results: dict[int, dict[str, Any]], world: int) -> None:
    assert results[world]["resharded"]["same_layout"] == 0
    assert results[world]["resharded"]["steps"] == [2]


@pytest.mark.parametrize("world", [2, 4])
def test_a_checkpoint_loads_at_other_parallel_sizes(results: dict[int, dict[str, Any]], world: int) -> None:
    _assert_resharded(results[world]["resharded"])


def test_a_checkpoint_with_experts_loads_at_other_parallel_sizes(results: dict[int, dict[str, Any]]) -> None:
    assert results[2]["resharded_experts"]["same_layout"] == 0
    _assert_resharded(results[2]["resharded_experts"])


def _assert_resharded(figures: dict[str, Any]) -> None:
    assert len(figures["other_layouts"]) == 2
    assert max(figures["other_layouts"]) < 5e-5
    went_on, *resumed = figures["losses"]
    assert all(losses == pytest.approx(went_on, abs=1e-6) for losses in resumed)


@pytest.mark.parametrize("world", [1, 2])
def test_an_asynchronous_checkpoint_holds_the_state_of_its_moment(results: dict[int, dict[str, Any]], world: int) -> None:
    figures = results[world]["asynchronous"]
    assert (figures["early"], figures["steps"]) == ([], [1, 2])
    assert figures["same"]
    assert figures["trains_on"]


@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_with_a_file_that_was_cut_is_passed_over(results: dict[int, dict[str, Any]], world: int) -> None:
    assert results[world]["asynchronous"]["after_a_cut"] == [1]


def test_routes_are_replayed_alike_on_every_layout(results: dict[int, dict[str, Any]]) -> None:
    alone, split = results[1]["routes"], results[2]["routes"]
    assert alone["same"]
    first = alone["forced"][0]
    assert first != pytest.approx(alone["free"][0], abs=1e-2)
    assert all(forced == pytest.approx(first, abs=1e-5) for forced in [*alone["forced"], *split["forced"]])
    assert all(norm == pytest.approx(alone["norms"][0], rel=1e-5) for norm in [*alone["norms"], *split["norms"]])


def test_frozen_weights_stay_as_they_are(results: dict[int, dict[str, Any]]) -> None:
    figures = results[1]["frozen"]
    held = [name for name in figures["all"] if "embed_tokens" in name or re.search(r"layers\.[01]\..*proj", name)]
    assert len(held) == 15
    assert figures["moved"] == [name for name in figures["all"] if name not in held]
    assert "'no_such_weight'" in figures["said"]


def test_the_table_of_differences_names_every_case() -> None:
    rows = re.findall(r"^\| ([a-z0-9-]+) \|", NUMERICS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [row for row in rows if row != "case"] == [case.name for case in CASES]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_update_that_is_not_finite_is_skipped_and_too_many_stop_all_ranks(results: dict[int, dict[str, Any]], world: int) -> None:
    figures = results[world]["not_finite"]
    assert figures["same"]
    assert figures["values"]["skipped_updates"] == 1
    assert len(figures["stopped"]) == world
    assert all("update 1 of 1 of step 2" in what and "batch-nan.h5" in what for what in figures["stopped"])


@pytest.mark.parametrize("world", [1, 2])
def test_the_ratio_divides_by_the_weights_that_drew_each_answer(results: dict[int, dict[str, Any]], world: int) -> None:
    figures = results[world]["kept"]
    assert figures["apart"] > 1e-3
    assert figures["old"] < 1e-6
    assert figures["same"]
    assert (figures["missing"], figures["gone"]) == (0, 1)


@pytest.mark.parametrize("world", [1, 2])
def test_a_batch_that_teaches_nothing_leaves_the_weights_as_they_are(results: dict[int, dict[str, Any]], world: int) -> None:
    figures = results[world]["odd"]
    assert figures["values"]["zero_advantage_fraction"] == 1
    assert (figures["values"]["loss"], figures["values"]["grad_norm"], figures["values"]["skipped_updates"]) == (0, 0, 0)
    assert figures["moved"] == 0


@pytest.mark.parametrize("world", [1, 2])
def test_samples_longer_than_a_micro_batch_are_trained_alone_and_counted(results: dict[int, dict[str, Any]], world: int) -> None:
    values = results[world]["odd"]["values"]
    assert 0 < values["oversized_samples"] < 16
    assert values["trained_tokens"] == results[1]["qwen3"]["values"][0]["trained_tokens"]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("name", "what"), [("empty", "holds no sample"), ("short", "logprobs_R has")])
def test_every_rank_refuses_a_batch_that_is_not_whole(results: dict[int, dict[str, Any]], world: int, name: str, what: str) -> None:
    said = results[world]["odd"]["refused"][name]
    assert len(said) == world
    assert all(what in words and f"batch-{name}.h5" in words for words in said)


def test_a_checkpoint_of_another_model_is_named_as_such(results: dict[int, dict[str, Any]]) -> None:
    assert "is of another model" in results[1]["foreign"]
    assert "tied False instead of True" in results[1]["foreign"]
    assert "model.path" in results[1]["foreign"]


def test_corrections_are_reported(results: dict[int, dict[str, Any]]) -> None:
    first = results[1]["gspo-tis"]["values"][0]
    assert 0 < first["correction_bounded"] < 1
    assert first["mismatch_k3"] > 0
    assert 0 < results[2]["dp2-rloo-whiten-rejection"]["values"][0]["rejected_fraction"] < 1
    assert results[2]["dp2-returns-kl-in-reward"]["values"][2]["kl"] > 0


def test_bfloat16_trains(results: dict[int, dict[str, Any]]) -> None:
    figures = results[1]["bf16"]
    assert figures["dtype"] == "torch.bfloat16"
    assert 0 < figures["score"] < 0.1
    assert 0 < figures["moved"] < 0.01


def test_the_gradient_of_the_log_probs_is_autograds(results: dict[int, dict[str, Any]]) -> None:
    assert results[1]["logits"]["gradient"] < 1e-12
